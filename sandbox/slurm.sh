#!/usr/bin/env bash
# KernelForge as a job of Slurm, by an ordinary user. From the folder that is to get the results:
#
#   sbatch sandbox/slurm.sh                                # kernelforge run
#   sbatch sandbox/slurm.sh run --suite level1 --jobs 4    # or any other command
#   KERNELFORGE_RESULTS=results/1234 sbatch sandbox/slurm.sh resume
#
# KERNELFORGE_VENV      the virtual environment; .venv in the folder of the job if left out
# KERNELFORGE_RESULTS   where the results end up; results/JOB in the folder of the job if left out. What is there
#                       already is taken along, so give it to one job at a time
# KERNELFORGE_SCRATCH   a disk of the node itself; SLURM_TMPDIR, TMPDIR or /tmp if left out
#
# Slurm sets CUDA_VISIBLE_DEVICES to the GPUs of the job, and KernelForge uses no others.
#SBATCH --job-name=kernelforge
#SBATCH --output=kernelforge-%j.out
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --gpus=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

job="${SLURM_JOB_ID:-$$}"
folder="${SLURM_SUBMIT_DIR:-$PWD}"
venv="${KERNELFORGE_VENV:-$folder/.venv}"
results="${KERNELFORGE_RESULTS:-$folder/results/$job}"
scratch="${KERNELFORGE_SCRATCH:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}"
if [ ! -x "$venv/bin/kernelforge" ]; then
  echo "slurm.sh: there is no $venv/bin/kernelforge: install KernelForge there, or name its environment in" \
    "KERNELFORGE_VENV" >&2
  exit 2
fi
if [ $# -eq 0 ]; then
  set -- run
fi

# SQLite and file locks want a local disk: a parallel file system may have no flock, and is slow at small writes.
work="$(mktemp -d "$scratch/kernelforge.$job.XXXXXX")"
export XDG_CACHE_HOME="$work/cache" TMPDIR="$work/tmp" KERNELFORGE_RESULTS="$work/results"
mkdir "$XDG_CACHE_HOME" "$TMPDIR" "$KERNELFORGE_RESULTS"
if [ -d "$results" ]; then
  cp -a "$results/." "$KERNELFORGE_RESULTS"
fi

# Slurm's signal comes to this shell, before the time is over. As Ctrl-C it finishes the attempts in flight.
"$venv/bin/kernelforge" "$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT
status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a signal ends the wait before the run has come to its end
  status=0
  wait "$child" || status=$?
done

# The copy is made beside the results and then takes their place: a job that is ended here leaves those of before.
mkdir -p "$(dirname "$results")"
cp -a "$KERNELFORGE_RESULTS" "$results.new.$job"
if [ -e "$results" ]; then
  mv "$results" "$results.old.$job"
fi
mv "$results.new.$job" "$results"
rm -rf "$results.old.$job" "$work"
echo "slurm.sh: the results are in $results"
exit "$status"
