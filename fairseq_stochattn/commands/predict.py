"""``stochattn-predict DATA --path CHECKPOINT``: predict a data set and measure the predictions.

``--output FILE`` has one JSON object per line, in the order of the data: ``id``, ``prediction``,
``label`` if there is one, and ``probabilities`` (of classes, options, or predicted tags). The
metrics of GLUE are printed in percent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from tqdm import tqdm

from ..analysis.loading import (
    DataSelection,
    chosen_device,
    load_batches,
    load_models,
    parse_overrides,
    require_settings,
)
from ..core.errors import InputError
from ..core.files import atomic_file
from ..tasks.kinds import labels_of
from ..tasks.labels import Labels, Prediction, predict
from .command import (
    CPU_HELP,
    FP16_HELP,
    OVERRIDES_HELP,
    SUBSET_HELP,
    USER_DIR_HELP,
    OneLineParser,
    command,
    load_user_dir,
    require_output,
    seed,
)

DESCRIPTION = "Predict a data set with a fine-tuned model, and print the metrics of GLUE."
EXAMPLE = (
    "stochattn-predict data-bin/RTE --path checkpoints/checkpoint_best.pt --samples 20 \\\n"
    "    --output predictions.jsonl"
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Predict all examples, write the output file and print the metrics."""
    args = build_parser().parse_args(argv)
    if args.samples < 0 or args.batch_size < 1:
        raise InputError("--samples must not be negative, --batch-size must be positive")
    if args.output is not None:
        require_output(args.output, "--output")
    load_user_dir(args.user_dir)
    overrides = parse_overrides(args.model_overrides)
    models, task, config = load_models(utils.split_paths(args.path), args.data, overrides)
    require_settings(overrides, config)
    labels = labels_of(task)
    for model in models:
        model.to(chosen_device(args.cpu), torch.float16 if args.fp16 else torch.float32)
    selection = DataSelection(
        args.data, args.gen_subset, batch_size=args.batch_size, skip_long=False
    )
    with atomic_file(args.output) if args.output else nullcontext() as file:
        predictions: list[Prediction] = []
        utils.set_torch_seed(args.seed)
        for batch in tqdm(load_batches(task, models, selection), disable=None):
            predictions += predict(labels, models, batch, args.samples)
        predictions.sort(key=lambda prediction: prediction.id)
        if file is not None:
            lines = (f"{as_json(prediction)}\n" for prediction in predictions)
            file.write_text("".join(lines), encoding="utf-8")
    metrics = compute_metrics(labels, predictions)
    summary = {"subset": args.gen_subset, "examples": len(predictions)}
    if args.json:
        print(json.dumps({**summary, **metrics}))
    else:
        shown = metrics or {"metrics": "none, the set has no labels"}
        print("\n".join(f"{name}\t{value}" for name, value in {**summary, **shown}.items()))
    return 0


def as_json(prediction: Prediction) -> str:
    """Return a prediction as one line of JSON, without the fields that are None."""
    return json.dumps({k: v for k, v in asdict(prediction).items() if v is not None})


def compute_metrics(labels: Labels, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the metrics in percent, None for undefined ones; empty if labels are missing."""
    if not predictions or any(row.label is None for row in predictions):
        return {}
    metrics = labels.metrics(
        [row.label for row in predictions], [row.prediction for row in predictions]
    )
    return {k: None if math.isnan(v) else round(100 * v, 2) for k, v in metrics.items()}


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-predict", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument(
        "data", help="folder of binarised data with the dictionaries of the training"
    )
    add = parser.add_argument_group("model and data").add_argument
    add("--path", required=True, help="checkpoint, or several checkpoints separated by :")
    add("--gen-subset", "--valid-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add(
        "--samples",
        type=int,
        default=0,
        metavar="K",
        help="average the predictions of K samples of the attention; 0 uses the mean of the "
        "attention (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="examples per batch (default: %(default)s)",
    )
    add("--seed", type=seed, default=1, help="seed of the samples (default: %(default)s)")
    add("--model-overrides", default="{}", metavar="DICT", help=OVERRIDES_HELP)
    add("--user-dir", metavar="DIR", help=USER_DIR_HELP)
    add("--fp16", action="store_true", help=FP16_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)
    add = parser.add_argument_group("output").add_argument
    add("--output", type=Path, metavar="FILE", help="write the predictions to FILE")
    add("--json", action="store_true", help="print the metrics as JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
