"""``stochattn-predict``: what a fine-tuned model predicts for a data set, and how good that is.

    stochattn-predict DATA --path CHECKPOINT --gen-subset valid --output FILE

FILE has one JSON object a line, in the order of the data: ``id``, ``prediction``, ``label`` where
there is one, ``probabilities`` (of the classes, the options, or the tags that were predicted).
Printed are GLUE's metrics, in percent.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from torch import nn
from tqdm import tqdm

from fairseq_stochattn.compat import first_line
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.files import whole_file
from fairseq_stochattn.predictions import Kind, Prediction, kind_of, predict

_DOES_NOT_FIT = (OSError, RuntimeError, KeyError, AttributeError, AssertionError, ValueError)


def load(paths: Sequence[str], data: str, overrides: dict[str, Any]) -> tuple[list[nn.Module], Any]:
    """The models of these checkpoints in eval mode, and their task for ``data``."""
    if not Path(data).is_dir():
        raise UsageError(f"data directory {data} does not exist")
    models, task = [], None
    for path in paths:
        state = checkpoint_utils.load_checkpoint_to_cpu(path, {**overrides, "data": data})
        # Loading replaces a head that does not fit by a fresh one, which would predict at random.
        stored = {name: value.shape for name, value in state["model"].items()}
        try:
            (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
                [path], task=task, state=state
            )
        except _DOES_NOT_FIT as error:
            raise UsageError(f"{path} does not fit {data}: {first_line(error)}") from None
        kind_of(task)
        for name, value in model.classification_heads.state_dict().items():
            if stored.get(f"classification_heads.{name}") != value.shape:
                raise UsageError(
                    f"{path} has no head for the labels in {data}: it was trained on other data"
                )
        models.append(model.eval())
    return models, task


def batches(
    task: Any, models: Sequence[nn.Module], data: str, subset: str, size: int
) -> Iterator[dict[str, Any]]:
    """A data set in batches of similar lengths."""
    if not any(Path(data, "input0").glob(f"{subset}.*")):
        raise UsageError(f"{data} has no {subset} set (--gen-subset)")
    try:
        dataset = task.load_dataset(subset)
        lengths = [dataset.num_tokens(index) for index in range(len(dataset))]
        longest = utils.resolve_max_positions(
            task.max_positions(), *(model.max_positions() for model in models)
        )
        if max(lengths) > longest:
            raise UsageError(
                f"example {np.argmax(lengths)} has {max(lengths)} tokens, the model takes "
                f"{longest}: add --model-overrides \"{{'shorten_method': 'truncate'}}\""
            )
        order = np.argsort(lengths, kind="stable")
        for part in tqdm(np.array_split(order, range(size, len(order), size)), disable=None):
            yield dataset.collater([dataset[int(index)] for index in part])
    except _DOES_NOT_FIT as error:
        cause = first_line(error)
        raise UsageError(f"{subset} in {data} is no set for this task: {cause}") from None


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
    models, task = load(utils.split_paths(args.path), args.data, _overrides(args.model_overrides))
    kind = kind_of(task)
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    for model in models:
        model.to(device=device, dtype=torch.float16 if args.fp16 else torch.float32)
    with whole_file(args.output) if args.output else nullcontext() as path:
        found: list[Prediction] = []
        utils.set_torch_seed(args.seed)
        for sample in batches(task, models, args.data, args.gen_subset, args.batch_size):
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


def _overrides(text: str) -> dict[str, Any]:
    try:
        return dict(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        raise UsageError(f"--model-overrides: {text} is no dictionary") from None


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
