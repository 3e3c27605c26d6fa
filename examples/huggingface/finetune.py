"""Fine-tunes a Hugging Face encoder on a task of GLUE with any method, and writes a JSON result.

python examples/huggingface/finetune.py --model FOLDER --glue FOLDER --task MRPC --method babn \
    --output OUT

--glue contains TASK/train.tsv and TASK/dev.tsv in GLUE's format. The recipe is that of the suite
glue_minilm in examples/evidence: batches of 16, learning rate 1e-4 with warm-up and linear decay.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path

sys.modules.setdefault("torchaudio", None)  # a build that does not fit torch stops transformers
import torch  # noqa: E402
import transformers  # noqa: E402

import fairseq_stochattn as sa  # noqa: E402
from fairseq_stochattn.core.errors import InputError  # noqa: E402
from fairseq_stochattn.uncertainty.measures import measures, summarize  # noqa: E402

METHODS = {
    "plain": None,
    "babn": sa.BABN,
    "bam": sa.BAM,
    "alignment": sa.Alignment,
    "asa": sa.ASA,
    "repulsive": None,
}
# Task → columns of the texts, column of the label, and whether the file has a header.
TASKS = {
    "MRPC": ((3, 4), 0, True),
    "RTE": ((1, 2), 3, True),
    "SST-2": ((0,), 1, True),
    "CoLA": ((3,), 1, False),
}
LABELS = {"0": 0, "1": 1, "not_entailment": 0, "entailment": 1}


class Trainer(sa.TrainerMixin, transformers.Trainer):
    """transformers' Trainer with the losses of the methods."""


def read_examples(path: Path, task: str) -> list[tuple[list[str], int]]:
    """The texts and the label of every row of a file of GLUE."""
    texts, label, header = TASKS[task]
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    found = []
    for number, row in enumerate(rows, start=1 + header):
        if len(row) <= max(*texts, label) or row[label] not in LABELS:
            raise InputError(f"{path}, line {number}: not a row of {task}")
        found.append(([row[column] for column in texts], LABELS[row[label]]))
    return found


def encode(
    examples: list[tuple[list[str], int]], tokenizer: transformers.PreTrainedTokenizerBase
) -> list[dict]:
    """The token ids and labels of the examples."""
    return [
        {**tokenizer(*texts, truncation=True, max_length=128), "labels": label}
        for texts, label in examples
    ]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--glue", type=Path, required=True, help="folder that contains the tasks")
    parser.add_argument("--task", choices=TASKS, default="MRPC")
    parser.add_argument("--method", choices=METHODS, default="plain")
    parser.add_argument("--output", type=Path, required=True, help="folder of the result")
    parser.add_argument("--split", default="dev", help="file to evaluate on: dev or test")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=20, help="samples of Bayesian attention")
    parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many updates")
    return parser


def train(args: argparse.Namespace) -> dict[str, float | str]:
    """Fine-tune, evaluate on another split, and save the model; returns the result."""
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model)
    if METHODS[args.method] is not None:
        sa.convert(model, METHODS[args.method]())
    data = {
        split: encode(read_examples(args.glue / args.task / f"{split}.tsv", args.task), tokenizer)
        for split in ("train", args.split)
    }
    arguments = transformers.TrainingArguments(
        output_dir=str(args.output / "trainer"),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=args.lr,
        warmup_steps=0.1,  # of all updates
        weight_decay=0.01,
        adam_beta2=0.98,
        adam_epsilon=1e-6,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        seed=args.seed,
    )
    trainer = Trainer(model, arguments, train_dataset=data["train"], processing_class=tokenizer)
    trainer.repulsive = {} if args.method == "repulsive" else None
    trainer.eval_samples = args.samples if args.method in ("babn", "bam") else 0
    start = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - start) / trainer.state.global_step
    found = trainer.predict(data[args.split])
    log_probs = torch.tensor(found.predictions).log_softmax(dim=-1)
    scores = measures(summarize(log_probs[None], torch.tensor(found.label_ids)), tokens=False)
    if METHODS[args.method] is None:
        model.save_pretrained(args.output / "model")
    else:
        sa.save_pretrained(model, args.output / "model")
    tokenizer.save_pretrained(args.output / "model")
    return {
        "task": args.task,
        "method": args.method,
        "seed": args.seed,
        "split": args.split,
        "epochs": args.epochs,
        "updates": trainer.state.global_step,
        **{name: round(scores[name], 4) for name in ("accuracy", "nll", "ece")},
        "seconds_per_update": round(seconds, 4),
    }


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        result = train(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (args.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
