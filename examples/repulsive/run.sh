#!/usr/bin/env bash
# examples/translation/run.sh with METHOD=repulsive unless another one is asked for.
METHOD=${METHOD:-repulsive} exec "$(dirname "$0")/../translation/run.sh" "$@"
