"""Whether the long versions of tests run: ``STOCHATTN_THOROUGH=1``, which some make targets set."""

import os

THOROUGH = os.environ.get("STOCHATTN_THOROUGH") == "1"
