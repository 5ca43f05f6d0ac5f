#!/bin/sh
# Checks all volumes of a namespace that have a label, by CSI snapshots, while pods use them:
#
#     check-snapshots.sh SELECTOR SNAPSHOT-CLASS RESULTS [KUBECTL OPTION]...
#
# for instance: check-snapshots.sh fleet=nightly csi-snapshots monday.jsonl --namespace=data
# Writes one report a volume to the new file RESULTS, for `floe report --fleet`. PARALLEL volumes (4) are checked
# at once; a snapshot may take TIMEOUT (1h), a check as long as check-snapshot.yaml says. Exit code 0 if there is a report of each, whatever it says.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# Checks one volume: prints its report.
one() {
    snapshots=$1 claim=$2
    shift 2
    storage=$(kubectl get pvc "$claim" "$@" -o 'jsonpath={.spec.storageClassName}')
    # The volume may have grown beyond what was asked for: a smaller claim would be refused.
    size=$(kubectl get pvc "$claim" "$@" -o 'jsonpath={.status.capacity.storage}')
    filled=$(sed -e "s|@CLAIM@|$claim|g" -e "s|@SNAPSHOTS@|$snapshots|g" \
        -e "s|@STORAGE@|$storage|g" -e "s|@SIZE@|$size|g" "$here/check-snapshot.yaml")
    trap 'printf "%s\n" "$filled" | kubectl delete "$@" --ignore-not-found --wait=false -f - >&2' EXIT
    # The first document is the snapshot. Its content exists once it is ready, and allows the change of mode then.
    snapshot=$(printf '%s\n' "$filled" | sed '/^---$/,$d')
    printf '%s\n' "$snapshot" | kubectl apply "$@" -f - >&2
    kubectl wait "$@" --for=jsonpath='{.status.readyToUse}'=true --timeout="${TIMEOUT:-1h}" \
        "volumesnapshot/floe-$claim" >&2
    content=$(kubectl get volumesnapshot "floe-$claim" "$@" \
        -o 'jsonpath={.status.boundVolumeSnapshotContentName}')
    kubectl annotate "$@" --overwrite "volumesnapshotcontent/$content" \
        snapshot.storage.kubernetes.io/allow-volume-mode-change=true >&2
    printf '%s\n' "$filled" | kubectl apply "$@" -f - >&2
    # Complete if the volume is clean, failed if it is not: either way there is an answer in the log. The Job has a
    # deadline of its own.
    while :; do
        state=$(kubectl get job "floe-$claim" "$@" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}')
        case "$state" in *Complete* | *Failed*) break ;; esac
        sleep "${POLL:-5}"
    done
    # Pods that were evicted have left parts of reports: the newest pod has the answer.
    pod=$(kubectl get pods "$@" --selector="job-name=floe-$claim" --sort-by=.metadata.creationTimestamp \
        -o 'jsonpath={.items[-1:].metadata.name}')
    kubectl logs "$@" "$pod"
}

# Whether a file is a whole report. A node keeps 10 MiB of a log, unless it is configured for more.
is_whole() {
    [ "$(head -n 1 "$1")" = "{" ] && [ "$(tail -n 1 "$1")" = "}" ]
}

if [ "${1:-}" = --one ]; then
    shift
    snapshots=$1 folder=$2 claim=$3
    shift 3
    one "$snapshots" "$claim" "$@" > "$folder/$claim.new"
    if is_whole "$folder/$claim.new"; then mv "$folder/$claim.new" "$folder/$claim"; fi
    exit
fi

selector=$1 snapshots=$2 results=$3
shift 3
[ ! -e "$results" ] || { echo "$results exists: nothing was checked" >&2; exit 16; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
kubectl get pvc --selector="$selector" "$@" -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' > "$folder/.claims"
[ -s "$folder/.claims" ] || { echo "no volume has the label $selector" >&2; exit 16; }
failed=0
xargs -P "${PARALLEL:-4}" -I @ sh "$0" --one "$snapshots" "$folder" @ "$@" < "$folder/.claims" || failed=8
# Reports of volumes that are missing are told of by name; those that are there are kept.
while read -r claim; do
    if [ -s "$folder/$claim" ]; then cat "$folder/$claim"; else echo "no report of $claim" >&2; failed=8; fi
done < "$folder/.claims" > "$results"
exit $failed
