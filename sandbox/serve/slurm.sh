#!/usr/bin/env bash
# The reward server as a job of Slurm, with every GPU of its nodes as a slot. From the folder that is to get the results:
#
#   sbatch sandbox/serve/slurm.sh                                  # kernelforge serve
#   sbatch sandbox/serve/slurm.sh --suite core --reward kevin/1    # with further options of it
#   sbatch --nodes=2 sandbox/serve/slurm.sh
#
# The first node holds the queue, the database and the HTTP interface; it evaluates as well. Trainers on other nodes use
# http://FIRST_NODE:8765 with the token in results/JOB/trainer.token, which the first job makes.
#
# KERNELFORGE_VENV, KERNELFORGE_RESULTS, KERNELFORGE_SCRATCH: see sandbox/slurm.sh, which runs the server
# KERNELFORGE_DEVICE     cuda if left out
# KERNELFORGE_RAY_PORT   of Ray on the first node; 6379 if left out
#SBATCH --job-name=kernelforge-serve
#SBATCH --output=kernelforge-serve-%j.out
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

job="${SLURM_JOB_ID:-$$}"
folder="${SLURM_SUBMIT_DIR:-$PWD}"
export KERNELFORGE_VENV="${KERNELFORGE_VENV:-$folder/.venv}"
export KERNELFORGE_RESULTS="${KERNELFORGE_RESULTS:-$folder/results/$job}"
script="$folder/sandbox/slurm.sh" # Slurm runs a copy of this file, from a folder of its own
for program in "$KERNELFORGE_VENV/bin/kernelforge" "$KERNELFORGE_VENV/bin/ray" "$script"; do
  if [ ! -x "$program" ]; then
    echo "slurm.sh: there is no $program: submit from a checkout whose environment has the extras server and ray, or" \
      "name the environment in KERNELFORGE_VENV" >&2
    exit 2
  fi
done

# Whoever has Ray's token can run code on every node, so it is this job's alone, and only this user may read it.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$folder/.kernelforge-ray-$job" RAY_USAGE_STATS_ENABLED=0
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH"
address="$(hostname -i | cut -d' ' -f1):${KERNELFORGE_RAY_PORT:-6379}"
workers=
finish() {
  if [ -n "$workers" ]; then
    kill -TERM "$workers" 2>/dev/null || true
    wait "$workers" 2>/dev/null || true
  fi
  "$KERNELFORGE_VENV/bin/ray" stop >/dev/null 2>&1 || true
  rm -f "$RAY_AUTH_TOKEN_PATH"
}
trap finish EXIT

mkdir -p "$KERNELFORGE_RESULTS"
if [ ! -e "$KERNELFORGE_RESULTS/trainer.token" ]; then
  "$KERNELFORGE_VENV/bin/kernelforge" token create trainer --results "$KERNELFORGE_RESULTS" \
    >"$KERNELFORGE_RESULTS/trainer.token"
fi
"$KERNELFORGE_VENV/bin/ray" start --head --node-ip-address="${address%:*}" --port="${address##*:}" \
  --num-cpus=0 --num-gpus=0 --include-dashboard=false
srun --overlap --nodes="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1 \
  "$KERNELFORGE_VENV/bin/ray" start --address="$address" --block &
workers=$!

# It works in the scratch folder, drains at Slurm's signal, and brings the results back.
"$script" serve --engine ray --address "$address" --device "${KERNELFORGE_DEVICE:-cuda}" --host 0.0.0.0 "$@" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null || true' TERM INT
status=0
wait "$server" || status=$?
while kill -0 "$server" 2>/dev/null; do # a signal ends the wait before the server has come to its end
  status=0
  wait "$server" || status=$?
done
exit "$status"
