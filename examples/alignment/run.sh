#!/usr/bin/env bash
# Runs examples/translation/run.sh with METHOD=alignment, unless METHOD is set.
METHOD=${METHOD:-alignment} exec "$(dirname "$0")/../translation/run.sh" "$@"
