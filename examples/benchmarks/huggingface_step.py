"""Print the time of a training step of a Hugging Face encoder with each method, ÷ plain.

    python examples/benchmarks/huggingface_step.py [--tokens 64] [--pairs 10] [--json FILE]

The plain model and the models with a method are in one process and take turns (timing.py). The
encoder has the sizes of MiniLM (6 layers of 384, 12 heads) and random weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.modules.setdefault("torchaudio", None)  # a build that does not fit torch stops transformers

import torch  # noqa: E402
import transformers  # noqa: E402
from timing import paired_ratios  # noqa: E402

import fairseq_stochattn as sa  # noqa: E402
from fairseq_stochattn.core.memory import keep_freed_memory  # noqa: E402

METHODS = {
    "babn": sa.BABN,
    "bam": sa.BAM,
    "alignment": sa.Alignment,
    "asa": sa.ASA,
    "repulsive": None,  # an optimizer: the attention stays plain
}


class Trainer(sa.TrainerMixin, transformers.Trainer):
    """transformers' Trainer with the losses of the methods."""


def step_of(name: str, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A function that makes one update as transformers' Trainer does."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    model = transformers.BertForSequenceClassification(config).train()
    if METHODS.get(name) is not None:
        sa.convert(model, METHODS[name]())
    arguments = transformers.TrainingArguments(
        output_dir="unused", report_to=[], use_cpu=True, save_strategy="no", max_steps=10**6
    )
    trainer = (transformers.Trainer if name == "plain" else Trainer)(model, arguments)
    trainer.repulsive = {} if name == "repulsive" else None
    optimizer = trainer.create_optimizer()

    def step() -> None:
        loss = trainer.compute_loss(model, dict(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        trainer.state.global_step += 1

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64, help="tokens per sentence")
    parser.add_argument("--sentences", type=int, default=16, help="sentences per batch")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of steps that are compared")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--json", type=Path, help="also write the ratios to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    shape = (args.sentences, args.tokens)
    batch = {
        "input_ids": torch.randint(1000, 20000, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": torch.randint(0, 2, (args.sentences,)),
    }
    steps = {name: step_of(name, batch) for name in args.methods}
    ratios = paired_ratios(step_of("plain", batch), steps, args.pairs)
    print("| method | step ÷ plain |\n|---|---|")
    for name, ratio in ratios.items():
        print(f"| `{name}` | {ratio} |")
    if args.json:
        found = {name: ratio.as_dict() for name, ratio in ratios.items()}
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
