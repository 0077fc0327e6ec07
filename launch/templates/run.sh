#!/bin/sh
# Starts Tributary by mpirun (Open MPI 4 or 5) on a cluster without a batch system. Run it from the repository's root, or
# give a command with paths of your own:
#   HOSTFILE=my-hosts RANKS=8 THREADS=4 launch/templates/run.sh prefill --model DIR --request FILE
# `tributary launch` does this and more: it checks hosts and versions first, restarts, and trusts no exit code of mpirun's.
set -eu

tributary=${TRIBUTARY:-$PWD/target/release/tributary} # at the same path on every host
hostfile=${HOSTFILE:-$(dirname "$0")/hostfile}
ranks=${RANKS:-8}
threads=${THREADS:-1} # of each rank; each is bound to as many cores

if [ "$#" -eq 0 ]; then
    set -- prefill --model examples/models/demo --request examples/models/demo/requests/hop2-0.json
fi
command=$1
shift

root=
if [ "$(id -u)" -eq 0 ]; then
    root=--allow-run-as-root
fi

status=0
mpirun ${root:+"$root"} -n "$ranks" --hostfile "$hostfile" --map-by "slot:PE=$threads" --bind-to core \
    ${LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH} ${TRIBUTARY_LOG:+-x TRIBUTARY_LOG} \
    "$tributary" "$command" --backend mpi --world-size "$ranks" --threads "$threads" "$@" || status=$?

# mpirun's 128 + n: a rank was killed by signal n. SIGINT and SIGTERM are ours; any other is a lost rank.
case $status in
130 | 143) ;;
12[89] | 13? | 14? | 15? | 16? | 17? | 18? | 19?) status=69 ;;
esac
exit "$status"
