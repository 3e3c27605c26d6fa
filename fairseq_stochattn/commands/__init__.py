"""The ``stochattn-*`` commands, one file per command; command.py describes what they share.

All of them but ``stochattn-prepare`` need fairseq, which is an extra of this package.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


class _MissingFairseq:
    """Ends a command with one line where it would import fairseq, which is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "fairseq":
            raise SystemExit(
                "fairseq_stochattn: this command needs fairseq: "
                "pip install 'fairseq_stochattn[fairseq]'"
            )


if find_spec("fairseq") is None:
    sys.meta_path.append(_MissingFairseq)
