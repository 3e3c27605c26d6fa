#!/usr/bin/env bash
# Runs examples/translation/run.sh with METHOD=babn, unless METHOD is set.
METHOD=${METHOD:-babn} exec "$(dirname "$0")/../translation/run.sh" "$@"
