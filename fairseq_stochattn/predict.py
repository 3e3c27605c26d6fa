"""``stochattn-predict``: what a fine-tuned model predicts for a data set, and how good that is.

    stochattn-predict DATA --path CHECKPOINT --gen-subset valid --output FILE

FILE has one JSON object a line, in the order of the data: ``id``, ``prediction``, ``label`` where
there is one, ``probabilities`` (of the classes, the options, or the tags that were predicted).
Printed are GLUE's metrics, in percent.
"""

from __future__ import annotations

import argparse
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

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.files import whole_file
from fairseq_stochattn.loading import (
    DataSelection,
    chosen_device,
    load_batches,
    load_models,
    parse_overrides,
)
from fairseq_stochattn.predictions import Kind, Prediction, kind_of, predict


def line_of(prediction: Prediction) -> str:
    return json.dumps({k: v for k, v in asdict(prediction).items() if v is not None})


def report(kind: Kind, found: Sequence[Prediction]) -> dict[str, Any]:
    """The metrics in percent, None where one is not defined; none without labels."""
    if not found or any(row.label is None for row in found):
        return {}
    measured = kind.metrics([row.label for row in found], [row.prediction for row in found])
    return {k: None if math.isnan(v) else round(100 * v, 2) for k, v in measured.items()}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.samples < 0 or args.batch_size < 1:
        raise UsageError("--samples must not be negative, --batch-size must be positive")
    utils.import_user_module(args)
    overrides = parse_overrides(args.model_overrides)
    models, task, _ = load_models(utils.split_paths(args.path), args.data, overrides)
    kind = kind_of(task)
    for model in models:
        model.to(chosen_device(args.cpu), torch.float16 if args.fp16 else torch.float32)
    selection = DataSelection(
        args.data, args.gen_subset, batch_size=args.batch_size, skip_long=False
    )
    with whole_file(args.output) if args.output else nullcontext() as path:
        found: list[Prediction] = []
        utils.set_torch_seed(args.seed)
        for sample in tqdm(load_batches(task, models, selection), disable=None):
            found += predict(kind, models, sample, args.samples)
        found.sort(key=lambda row: row.id)
        if path is not None:
            path.write_text("".join(f"{line_of(row)}\n" for row in found), encoding="utf-8")
    measured = report(kind, found)
    heading = {"subset": args.gen_subset, "examples": len(found)}
    if args.json:
        print(json.dumps({**heading, **measured}))
    else:
        values = measured or {"metrics": "none, the set has no labels"}
        print("\n".join(f"{name}\t{value}" for name, value in {**heading, **values}.items()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stochattn-predict", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("data", help="prepared data, with the dictionaries the model was trained with")
    add("--path", required=True, help="checkpoint, or several with : between them")
    add("--gen-subset", "--valid-subset", default="valid", help="default: %(default)s")
    add("--output", type=Path, help="file to write the predictions to")
    add("--json", action="store_true", help="print the metrics as JSON")
    add(
        "--samples",
        type=int,
        default=0,
        help="predict by the mean of so many samples of the attention; default: its mean",
    )
    add("--batch-size", type=int, default=32, help="default: %(default)s")
    add(
        "--model-overrides", default="{}", help="settings of the checkpoint to change, a dictionary"
    )
    add("--user-dir", help="another plugin of fairseq")
    add("--seed", type=int, default=1, help="of the samples, default: %(default)s")
    add("--fp16", action="store_true", help="in half precision")
    add("--cpu", action="store_true", help="on the CPU where there is a GPU too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
