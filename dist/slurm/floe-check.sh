#!/bin/sh
# Check one ext4 file system with many nodes of a Slurm cluster, and report once:
#
#     floe-check.sh DEVICE FOLDER SHARDS [OPTION OF sbatch]...
#
# FOLDER is new, on a file system that all nodes see, and only yours. DEVICE has the same name on all
# nodes, and nobody writes to it meanwhile. The report will be FOLDER/report.json. Prints the number of
# the job that writes it: its exit code is that of the check (0 clean, 4 damaged).
#
# A shard that fails ends the check: FOLDER/shard-I.log has the reason. The same command then runs the
# shards whose parts FOLDER lacks, and merges.
set -eu
[ $# -ge 3 ] || { echo "usage: floe-check.sh DEVICE FOLDER SHARDS [OPTION OF sbatch]..." >&2; exit 16; }
device=$1 folder=$2 shards=$3
shift 3
case $shards in '' | *[!0-9]* | 0*) echo "SHARDS is $shards, not a number from 1" >&2; exit 16 ;; esac
case $device in /*) ;; *) device=$PWD/$device ;; esac

# A word for the shell that runs a job.
quoted() { printf %s "$1" | sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/"; }

if [ ! -e "$folder/check" ]; then
    mkdir -m 700 "$folder"
    printf '%s\n' "$shards shards of $device" > "$folder/check"
elif [ "$(cat "$folder/check")" != "$shards shards of $device" ]; then
    echo "$folder belongs to another check: $(cat "$folder/check")" >&2
    exit 16
fi
folder=$(cd "$folder" && pwd)
missing='' index=0
while [ "$index" -lt "$shards" ]; do
    [ -e "$folder/part-$index" ] || missing="$missing,$index"
    index=$((index + 1))
done
floe=$(quoted "${FLOE:-floe}") device=$(quoted "$device") parts=$(quoted "$folder")
# sbatch replaces %j and others in the names of logs.
logs=$(printf %s "$folder" | sed 's/%/%%/g')

# Each task runs one shard. A shard may run twice: its part is replaced as a whole. Slurm requeues the tasks
# of nodes that it lost. A task whose shard was ended by a signal, such as that for lack of memory, requeues
# itself, twice at most.
after=''
if [ -n "$missing" ]; then
    array=$(sbatch --parsable --requeue --open-mode=append --job-name=floe-shard --array="${missing#,}" \
        --output="$logs/shard-%a.log" "$@" <<EOF
#!/bin/sh
code=0
$floe check --threads "\${SLURM_CPUS_PER_TASK:-1}" --shard "\$SLURM_ARRAY_TASK_ID/$shards" \
    --out $parts/part-"\$SLURM_ARRAY_TASK_ID" $device || code=\$?
if [ "\$code" -gt 128 ] && [ "\${SLURM_RESTART_COUNT:-0}" -lt 2 ]; then
    echo "signal \$((code - 128)) ended the shard, which is requeued"
    scontrol requeue "\${SLURM_ARRAY_JOB_ID}_\$SLURM_ARRAY_TASK_ID" && sleep 60
fi
exit "\$code"
EOF
    )
    # The merge starts when all shards have succeeded, and is cancelled if one cannot.
    after=--dependency=afterok:$array
fi
sbatch --parsable --job-name=floe-merge ${after:+"$after"} --kill-on-invalid-dep=yes \
    --output="$logs/merge.log" "$@" <<EOF
#!/bin/sh
exec $floe check --threads "\${SLURM_CPUS_PER_TASK:-1}" --json $device \
    --merge $parts/part-* > $parts/report.json
EOF
