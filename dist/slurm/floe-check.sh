#!/bin/sh
# Check one ext4 file system with many nodes of a Slurm cluster, and report once:
#
#     floe-check.sh DEVICE FOLDER SHARDS [OPTION OF sbatch]...
#
# FOLDER is new, on a file system that all nodes see, and only yours. DEVICE has the same name on all
# nodes, and nobody writes to it meanwhile. The report will be FOLDER/report.json. Prints the number of
# the job that writes it: its exit code is that of the check (0 clean, 4 damaged).
set -eu
device=$1 folder=$2 shards=$3
shift 3
mkdir -m 700 "$folder"
folder=$(cd "$folder" && pwd)
floe=${FLOE:-floe}

# Each task runs one shard. A shard may run twice (--requeue): its part is replaced as a whole.
array=$(sbatch --parsable --requeue --job-name=floe-shard --array="0-$((shards - 1))" \
    --output="$folder/shard-%a.log" "$@" <<EOF
#!/bin/sh
exec "$floe" check --threads "\${SLURM_CPUS_PER_TASK:-1}" --shard "\$SLURM_ARRAY_TASK_ID/$shards" \
    --out "$folder/part-\$SLURM_ARRAY_TASK_ID" "$device"
EOF
)

# The merge starts when all shards have succeeded, and is cancelled if one cannot.
sbatch --parsable --job-name=floe-merge --dependency="afterok:$array" --kill-on-invalid-dep=yes \
    --output="$folder/merge.log" "$@" <<EOF
#!/bin/sh
exec "$floe" check --threads "\${SLURM_CPUS_PER_TASK:-1}" --json "$device" \
    --merge "$folder"/part-* > "$folder/report.json"
EOF
