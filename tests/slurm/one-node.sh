#!/bin/sh
# Runs Tributary in a real Slurm of one node: brings it up in a folder of its own, submits launch/templates/slurm.sbatch
# and other jobs, checks answers and exit codes, prints what the jobs printed, and takes everything down again.
#   tests/slurm/one-node.sh [PROGRAM]      (as root; PROGRAM: a build with the feature mpi)
# Installs Slurm and munge with apt where they lack, and says so.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(readlink -f "${1:-$root/target/release/tributary}")
model=$root/models/demo
prefill="prefill --model $model --request $model/requests/hop2-0.json --max-tokens 8 --json"

say() { printf '\n== %s\n' "$*"; }
fail() {
    echo "slurm test: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "needs root: Slurm's daemons run as root here"
[ -x "$program" ] || fail "$program is missing: run \`make mpi\`"
if ! command -v slurmctld slurmd sbatch srun munged >/dev/null; then
    echo "installing with apt: slurm-wlm munge"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge >/dev/null
fi

dir=$(mktemp -d)
log="$dir/log"
mkdir -m 700 "$dir/munge" "$log" "$dir/state" "$dir/spool" "$dir/jobs"

down() {
    for pid in "$dir"/*.pid; do
        [ -e "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
    done
    wait_until 10 stopped || echo "slurm test: a daemon does not end" >&2
    rm -rf "$dir"
}
stopped() {
    for pid in "$dir"/*.pid; do
        if [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; then return 1; fi
    done
}
# wait_until SECONDS COMMAND..: whether the command succeeds within so many seconds.
wait_until() {
    tries=$(($1 * 10))
    shift
    while ! "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}

# Ports that another run at the same time is unlikely to have.
port=$((20000 + $$ % 20000))
host=$(hostname -s)
configure() {
    cat <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$log/slurmctld
SlurmdLogFile=$log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# The node may say that it has more cores than it has.
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
CONF
}

up() {
    configure >"$dir/slurm.conf"
    dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 status=none
    chmod 400 "$dir/munge/key"
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munged.pid" \
        --seed-file="$dir/munge/seed" --log-file="$log/munged"
    slurmctld -f "$dir/slurm.conf"
    slurmd -f "$dir/slurm.conf" -N "$host"
    wait_until 30 idle || {
        cat "$log"/* >&2
        fail "the node does not come up"
    }
}
idle() { sinfo --noheader --format=%T 2>/dev/null | grep -qx idle; }

# submit NAME EXIT_CODE SBATCH_ARGUMENTS..: runs a job to its end, prints what it printed and checks its exit code.
submit() {
    name=$1 expected=$2
    shift 2
    say "sbatch $name"
    status=0
    sbatch --quiet --wait --chdir="$root" --output="$dir/jobs/$name" "$@" || status=$?
    cat "$dir/jobs/$name"
    echo "exit code $status"
    [ "$status" = "$expected" ] || fail "$name: exit code $status, not $expected"
}
# field NAME TEXT: a field of a report in JSON.
field() { printf '%s' "$2" | tr -d '\n' | grep -o "\"$1\": *\(\[[^]]*\]\|\"[^\"]*\"\|[0-9]*\)" | head -n 1; }
# job NAME: what a job printed.
job() { cat "$dir/jobs/$1"; }
# same NAME REPORT REPORT
same() {
    one=$(field "$1" "$2")
    other=$(field "$1" "$3")
    echo "$one"
    [ -n "$one" ] && [ "$one" = "$other" ] || fail "$1 differs: $one, and in one process $other"
}

trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export SLURM_CONF="$dir/slurm.conf" TRIBUTARY="$program"
template=$root/launch/templates/slurm.sbatch
four="--nodes=1 --ntasks-per-node=4 --cpus-per-task=1"

say "a Slurm of one node"
up
sbatch --version
sinfo
srun --mpi=list

# The lists of words below are meant to be split.
# shellcheck disable=SC2086
{
    submit template 0 $four "$template" $prefill
    say "the same in one process"
    alone=$("$program" $prefill --world-size 4)
    same token_ids "$(job template)" "$alone"
    same answer "$(job template)" "$alone"
    field backend "$(job template)"

    cat >"$dir/plain" <<BATCH
#!/bin/sh
echo "variables of a batch script:"
env | grep -E '^(SLURM_(PROCID|LOCALID|NTASKS|STEP_NUM_TASKS|STEP_ID|MPI_TYPE)|PMIX?_RANK|OMPI_COMM_WORLD_RANK)=' | sort
echo "variables of a task of srun:"
srun --mpi=pmix sh -c 'if [ "\$SLURM_PROCID" = 3 ]; then
    env | grep -E "^(SLURM_(PROCID|LOCALID|NTASKS|STEP_NUM_TASKS|STEP_ID|MPI_TYPE)|PMIX?_(RANK|SIZE)|OMPI_COMM_WORLD_RANK)=" | sort
fi'
"$program" $prefill
BATCH
    submit without-srun 0 $four "$dir/plain"
    [ "$(field world "$(job without-srun)")" = '"world": 1' ] || fail "without srun it is one process"
    field backend "$(job without-srun)"

    submit usage 64 $four "$template" $prefill --ratio 7
    [ "$(grep -c '^tributary: ' "$dir/jobs/usage")" = 1 ] || fail "one rank says what is wrong"

    # Without PMIx every process would be a world of its own.
    printf '#!/bin/sh\nsrun --mpi=none --kill-on-bad-exit=1 "%s" %s\n' "$program" "$prefill" >"$dir/none"
    submit without-pmix 78 $four "$dir/none"
}

# The first task of a step that has this rank.
rank_process() {
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qx "SLURM_PROCID=$1" &&
            [ "$(cat "$process/comm" 2>/dev/null)" = tributary ]; then
            victim=${process#/proc/}
            return 0
        fi
    done
    return 1
}
say "a rank killed"
(
    wait_until 30 rank_process 2 && sleep 2 && kill -9 "$victim"
) &
# shellcheck disable=SC2086
submit killed 69 $four "$template" doctor --sizes 1MiB --repeat 1000000
grep -q '^tributary: rank 2 .*has died' "$dir/jobs/killed" || fail "nobody names the rank that was killed"

say "all as it should be"
