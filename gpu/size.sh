#!/bin/sh
# What travels to a GPU machine: tracked files and the bundle, at most 60 MiB together.
#   size.sh         target/gpu where it was built, else the emulated one, whose programs are about as large
#   size.sh FOLDER  the bundle there
set -eu
cd "$(dirname "$0")/.."
most=$((60 << 20))
folder=${1:-target/gpu}
[ $# = 1 ] || [ -e "$folder/bundle.tar.xz" ] || folder=target/gpu-emulated
bundle=$(wc -c <"$folder/bundle.tar.xz")
tracked=$(git ls-files -z | xargs -0 du -cb | awk '$2 == "total" { all += $1 } END { print all }')
echo "to carry: $bundle bytes in $folder, $tracked in tracked files, at most $most together"
if [ $((bundle + tracked)) -gt $most ]; then
    echo "a GPU machine takes no more than that: see what came in (tar -tvf $folder/bundle.tar.xz, git ls-files)" >&2
    exit 1
fi
