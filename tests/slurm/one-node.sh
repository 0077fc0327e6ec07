#!/bin/sh
# Runs Tributary in a real Slurm of one node: brings it up in a folder of its own, submits launch/templates/slurm.sbatch
# and other jobs, checks answers and exit codes, prints what the jobs printed, and takes everything down again.
#   tests/slurm/one-node.sh [PROGRAM]      (as root; PROGRAM: a build with the feature mpi)
# Installs Slurm and munge with apt where they lack, and says so.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(readlink -f "${1:-$root/target/release/tributary}")
model=$root/examples/models/demo
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
# wait_until SECONDS COMMAND..: whether the command succeeds within SECONDS seconds.
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

# submit NAME EXIT_CODE SBATCH_ARGUMENTS..: runs a job to its end, prints what it printed and checks its exit code. A
# report in JSON goes to a file of its own.
submit() {
    name=$1 expected=$2
    shift 2
    say "sbatch $name"
    status=0
    sbatch --quiet --wait --chdir="$root" --output="$dir/jobs/$name" "$@" || status=$?
    sed -n '/^{$/,/^}$/p' "$dir/jobs/$name" >"$dir/jobs/$name.json"
    sed '/^{$/,/^}$/d' "$dir/jobs/$name"
    if [ -s "$dir/jobs/$name.json" ]; then
        for part in backend world token_ids answer; do field "$part" "$name"; done
    fi
    echo "exit code $status"
    [ "$status" = "$expected" ] || fail "$name: exit code $status, not $expected"
}
# field NAME JOB: a field of a job's report.
field() {
    tr -d '\n' <"$dir/jobs/$2.json" | grep -o "\"$1\": *\(\[[^]]*\]\|\"[^\"]*\"\|[0-9]*\)" | head -n 1 | tr -s ' '
}
# is JOB NAME VALUE
is() {
    found=$(field "$2" "$1")
    [ "$found" = "\"$2\": $3" ] || fail "$1: $found, not $3"
}
# lines JOB: how many lines of ours say what is wrong.
lines() { grep -c '^tributary: ' "$dir/jobs/$1" || true; }

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
    is template world 4
    say "the same in one process"
    "$program" $prefill --world-size 4 >"$dir/jobs/alone.json"
    for part in token_ids answer; do
        field "$part" alone
        [ "$(field "$part" alone)" = "$(field "$part" template)" ] || fail "$part differs"
    done

    cat >"$dir/plain" <<BATCH
#!/bin/sh
show() { env | grep -E '^(SLURM_(PROCID|LOCALID|NTASKS|STEP_NUM_TASKS|STEP_ID|MPI_TYPE)|PMIX?_(RANK|SIZE)|OMPI_.*)=' | sort; }
case \$1 in
"")
    echo "variables of a batch script:"
    show
    srun --mpi=pmix "\$0" task
    srun --mpi=none "\$0" task
    "$program" $prefill
    ;;
task)
    [ "\$SLURM_PROCID" = 3 ] || exit 0
    echo "variables of a task of srun:"
    show
    ;;
esac
BATCH
    chmod +x "$dir/plain"
    submit without-srun 0 $four --wrap "$dir/plain"
    is without-srun world 1
    is without-srun backend '"local"'

    # The launcher of our own, inside a job: over srun, and over mpirun, which takes its hosts from Slurm.
    submit launch-srun 0 $four --wrap "'$program' launch -n 4 --launcher srun -- $prefill"
    is launch-srun world 4
    submit launch-mpirun 0 $four --wrap "'$program' launch -n 4 -- $prefill"
    is launch-mpirun world 4

    submit usage 64 $four "$template" $prefill --ratio 7
    [ "$(lines usage)" = 1 ] || fail "one rank says what is wrong"
    submit other-size 78 $four --wrap "srun --mpi=pmix --kill-on-bad-exit=1 '$program' $prefill --world-size 3"
    [ "$(lines other-size)" = 1 ] || fail "one rank says what is wrong"
    # Without PMIx every process would be a world of its own, or hang.
    submit without-pmix 78 $four --wrap "srun --mpi=none --kill-on-bad-exit=1 '$program' $prefill"
    [ "$(lines without-pmix)" = 1 ] || fail "one rank says what is wrong"
}

# Finds the process of this rank.
rank_process() {
    for process in /proc/[0-9]*; do
        if [ "$(cat "$process/comm" 2>/dev/null)" = tributary ] &&
            grep -qzx "SLURM_PROCID=$1" "$process/environ" 2>/dev/null; then
            victim=${process#/proc/}
            return 0
        fi
    done
    return 1
}
# It works for a minute, unless a rank is lost.
(wait_until 30 rank_process 2 && sleep 2 && kill -9 "$victim") &
# shellcheck disable=SC2086
submit killed 69 $four "$template" doctor --skip-checks --sizes 64MiB --repeat 1000
grep -q '^tributary: rank 2 .*has died' "$dir/jobs/killed" || fail "no line names the killed rank"
wait

say "all as it should be"
