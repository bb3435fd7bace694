#!/bin/sh
# Prolog of slurmd: writes account, user and GPUs of a job for gpuledger (--slurm.job-mapping-dir) and dcgm-exporter.
# Always exits with 0, because Slurm drains a node whose prolog fails. See docs/slurm.md.
set -u
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin # Slurm sets none
dir=${GPULEDGER_JOB_DIR:-/run/gpu-jobs}
job=${SLURM_JOB_ID:-}

record() (
    mkdir -p "$dir" && exec 9<"$dir" && flock 9 || exit 1
    # First the account, so that the allocation has it from its first scrape on.
    if [ -n "${SLURM_JOB_ACCOUNT:-}" ]; then
        printf '%s\n' "$SLURM_JOB_ACCOUNT" >"$dir/account.$job" || exit 1
    fi
    case ${SLURM_JOB_UID:-} in
    '' | *[!0-9]*) ;;
    *) printf '%s\n' "$SLURM_JOB_UID" >"$dir/user.$job" || exit 1 ;;
    esac
    IFS=,
    for gpu in ${SLURM_JOB_GPUS:-}; do
        case $gpu in
        '' | *[!0-9]*) continue ;;
        esac
        # Jobs may share a GPU: one line for each of them.
        grep -qsx "$job" "$dir/$gpu" || printf '%s\n' "$job" >>"$dir/$gpu" || exit 1
    done
)

case $job in
'' | *[!0-9]*) ;;
*) record || logger -t gpuledger-prolog "cannot record job $job in $dir" ;;
esac
exit 0
