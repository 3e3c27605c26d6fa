#!/usr/bin/env bash
# Fine-tunes with adversarial self-attention as in Table 5 of the paper:
#   MODEL=FOLDER examples/asa/run.sh TASK [OUT] [flags for fairseq-train …]
# This runs examples/glue/run.sh with METHOD=asa PRESET=asa, unless they are set. Or trains a translator:
#   examples/asa/run.sh multi30k [OUT] [flags for fairseq-train …]
# This runs examples/translation/run.sh; any of its configurations can be named.
examples=$(cd "$(dirname "$0")/.." && pwd)
export METHOD=${METHOD:-asa}
[ -f "$examples/translation/configs/${1:-}.sh" ] && exec "$examples/translation/run.sh" "$@"
PRESET=${PRESET:-asa} exec "$examples/glue/run.sh" "$@"
