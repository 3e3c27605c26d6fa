"""The steps of the corpus scripts. Each module can be used on its own."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("fairseq_stochattn") is None:
    # The scripts also run in a clone in which the package was never installed.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
