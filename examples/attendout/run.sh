#!/usr/bin/env bash
# Runs examples/glue/run.sh with METHOD=attendout and PRESET=attendout (the tasks of the paper), unless they are set:
#   MODEL=FOLDER examples/attendout/run.sh CoLA|MRPC|SST-2|QNLI|MNLI|IMDb|CoNLL-2003|SWAG [OUT] [flags …]
METHOD=${METHOD:-attendout} PRESET=${PRESET:-attendout} exec "$(dirname "$0")/../glue/run.sh" "$@"
