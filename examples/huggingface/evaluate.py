"""Measures a model of finetune.py: accuracy, calibration, PAvPU and out-of-domain detection.

python examples/huggingface/evaluate.py OUT/model --glue FOLDER --task MRPC --outside RTE
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from finetune import TASKS, encode, read_examples
from torch import nn

import fairseq_stochattn as sa
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.uncertainty.measures import Answers, auroc, measures, summarize
from fairseq_stochattn.uncertainty.sampling import is_random


def load(folder: Path) -> nn.Module:
    """The model in a folder, converted or plain."""
    if (folder / "stochattn.json").is_file():
        return sa.load_pretrained(folder)
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()


@torch.no_grad()
def answers(model: nn.Module, folder: Path, path: Path, task: str, samples: int) -> Answers:
    """The predictions for one file, under ``samples`` samples if the attention is random."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    examples, found = encode(read_examples(path, task), tokenizer), []
    for start in range(0, len(examples), 32):
        batch = collate(examples[start : start + 32])
        labels = batch.pop("labels")
        if is_random(model):
            outputs = sa.sample(model, samples, max_rows=256, **batch).outputs  # (K, B, classes)
        else:
            outputs = model(**batch).logits[None]
        found.append(summarize(outputs.log_softmax(dim=-1), labels))
    return Answers.joined(found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder that finetune.py has written")
    parser.add_argument("--glue", type=Path, required=True, help="folder that contains the tasks")
    parser.add_argument("--task", choices=TASKS, default="MRPC")
    parser.add_argument("--outside", choices=TASKS, help="task whose inputs are out of domain")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    try:
        model = load(args.model)
        files = {task: args.glue / task / "dev.tsv" for task in (args.task, args.outside) if task}
        found = {
            task: answers(model, args.model, path, task, args.samples)
            for task, path in files.items()
        }
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = measures(found[args.task], tokens=False)
    if args.outside:
        inside, outside = found[args.task], found[args.outside]
        for name in ("predictive_entropy", "mutual_information"):
            result[f"auroc_outside_{name}"] = auroc(getattr(inside, name), getattr(outside, name))
    print(json.dumps({name: round(value, 4) for name, value in result.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
