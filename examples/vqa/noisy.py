#!/usr/bin/env python3
"""Evaluate a model of --task vqa on noisy images, and write its measures as one JSON object.

Example: examples/vqa/noisy.py DATA MODEL --noise 1 --samples 20 --json noisy.json
The evidence runner calls this after stochattn-evaluate has measured the images without noise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from fairseq_stochattn.commands import evaluate
from fairseq_stochattn.core.files import atomic_file


def main() -> int:
    """Run stochattn-evaluate with --image-noise and keep the metrics of its only model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--noise", type=float, required=True, help="standard deviation")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    args, more = parser.parse_known_args()  # the others are flags of stochattn-evaluate
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "evaluation.json"
        given = [args.data, "--path", args.model, "--image-noise", str(args.noise)]
        status = evaluate.main([*given, "--json", str(out), *more])
        if status:
            return status
        metrics = json.loads(out.read_text(encoding="utf-8"))["checkpoints"][0]["metrics"]
    with atomic_file(args.json) as partial:
        partial.write_text(json.dumps(metrics) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
