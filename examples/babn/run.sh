#!/usr/bin/env bash
# examples/translation/run.sh with METHOD=babn unless another one is asked for.
METHOD=${METHOD:-babn} exec "$(dirname "$0")/../translation/run.sh" "$@"
