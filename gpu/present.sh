#!/bin/sh
# Exit code 69 where there is no GPU, and what to do then. (Make shows it as `Error 69` and answers 2 itself.)
if [ "$(nvidia-smi -L 2>/dev/null | grep -c GPU)" = 0 ]; then
    echo "no GPU on this machine: nothing was run. \`make gpu-bundle\` builds target/gpu for one that has it (docs/gpu.md)" >&2
    exit 69
fi
