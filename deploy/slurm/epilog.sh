#!/bin/sh
# Epilog of slurmd: removes what prolog.sh wrote about a job.
# Always exits with 0, because Slurm drains a node whose epilog fails. See docs/slurm.md.
set -u
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
dir=${GPULEDGER_JOB_DIR:-/run/gpu-jobs}
job=${SLURM_JOB_ID:-}

remove() (
    [ -d "$dir" ] || exit 0
    exec 9<"$dir" && flock 9 || exit 1
    rm -f "$dir/account.$job" "$dir/user.$job"
    # All GPUs, not only $SLURM_JOB_GPUS: a job must not stay if Slurm forgot its GPUs.
    for file in "$dir"/[0-9]*; do
        grep -qsx "$job" "$file" || continue
        # grep returns 1 if no other job is left; the file is then empty.
        grep -vx "$job" "$file" >"$dir/.new"
        mv -f "$dir/.new" "$file" || exit 1
    done
)

case $job in
'' | *[!0-9]*) ;;
*) remove || logger -t gpuledger-epilog "cannot remove job $job from $dir" ;;
esac
exit 0
