#!/usr/bin/env bash
# Fine-tune with adversarial self-attention as in Table 5 of the paper, or train a translator:
#   MODEL=FOLDER examples/asa/run.sh TASK [OUT] [flags for fairseq-train …]
# is examples/glue/run.sh with METHOD=asa PRESET=asa unless others are asked for;
#   examples/asa/run.sh multi30k [OUT] [flags for fairseq-train …]
# is examples/translation/run.sh, of whose configurations any may be named.
examples=$(cd "$(dirname "$0")/.." && pwd)
export METHOD=${METHOD:-asa}
[ -f "$examples/translation/configs/${1:-}.sh" ] && exec "$examples/translation/run.sh" "$@"
PRESET=${PRESET:-asa} exec "$examples/glue/run.sh" "$@"
