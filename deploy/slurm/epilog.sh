#!/bin/sh
# Epilog of slurmd: removes what prolog.sh wrote about a job.
# With GPULEDGER_JOB_COMMENT=Comment or AdminComment, it first writes what the job used into that field of the job.
# Always exits with 0, because Slurm drains a node whose epilog fails. See docs/slurm.md.
set -u
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
export PATH
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

comment() (
    # While the job is still in the files: the exporter forgets it some seconds after they change.
    # gpuledger rejects variables that are not its settings.
    text=$(env -u GPULEDGER_JOB_COMMENT -u GPULEDGER_JOB_DIR \
        timeout 5 "${GPULEDGER:-/usr/local/bin/gpuledger}" job "$job" --short) || exit 1
    # scontrol refuses to change a job that has finished.
    timeout 5 sacctmgr -i modify job where jobid="$job" set "$GPULEDGER_JOB_COMMENT=$text" >/dev/null
)

case $job in
'' | *[!0-9]*) ;;
*)
    case ${GPULEDGER_JOB_COMMENT:-} in
    Comment | AdminComment) comment || logger -t gpuledger-epilog "cannot write the comment of job $job" ;;
    esac
    remove || logger -t gpuledger-epilog "cannot remove job $job from $dir"
    ;;
esac
exit 0
