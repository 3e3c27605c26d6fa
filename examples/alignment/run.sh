#!/usr/bin/env bash
# examples/translation/run.sh with METHOD=alignment unless another one is asked for.
METHOD=${METHOD:-alignment} exec "$(dirname "$0")/../translation/run.sh" "$@"
