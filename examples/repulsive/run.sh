#!/usr/bin/env bash
# Runs examples/translation/run.sh with METHOD=repulsive, unless METHOD is set.
METHOD=${METHOD:-repulsive} exec "$(dirname "$0")/../translation/run.sh" "$@"
