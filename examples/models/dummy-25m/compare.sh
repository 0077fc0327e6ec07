#!/bin/sh
# Methods side by side on random weights of 25 M parameters: 8192 context tokens in 16 chunks, a query of 32, one thread a
# rank. The second argument is the number of counted runs.
set -eu
tributary=${1:?usage: compare.sh PATH_OF_TRIBUTARY [RUNS]}
exec "$tributary" compare --model "$(dirname "$0")" --load-format dummy --synthetic 16x512+32 --max-tokens 1 \
    --world-size 2 --threads 1 --repeat "${2:-5}" \
    --methods full:world=1 full:world=1:threads=2 ring all-gather none \
    infoflow:exchange=replicate infoflow:exchange=pass-q infoflow:exchange=selected relay
