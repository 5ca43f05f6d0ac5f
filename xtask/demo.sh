#!/usr/bin/env bash
# `make demo`: a real ext4 image with 20,000 files, three kinds of damage to copies of it: checked,
# previewed, repaired, judged by e2fsck, and undone; then an image of files, mounted and recovered
# (demo-files.sh). Everything happens in a scratch folder; no device is touched, no root needed.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
floe=$PWD/target/release/floe
sources=$PWD
scenes=$PWD/docs/scenes

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '\033[1m$ %s\033[0m\n' "$*"; }

# Runs a command, shows it, and says how it ended and how long it took.
run() {
    local start end status=0
    show "$@"
    start=$(date +%s%N)
    "$@" 2>&1 || status=$?
    end=$(date +%s%N)
    echo "[exit code $status, $(((end - start) / 1000000)) ms]"
    last_status=$status
}

# The same, but shows only the first lines.
run_briefly() {
    local status=0 lines=$1
    shift
    show "$@"
    "$@" >output 2>&1 || status=$?
    head -n "$lines" output
    local rest=$(($(wc -l <output) - lines))
    [ "$rest" -le 0 ] || echo "... and $rest more lines"
    echo "[exit code $status]"
    last_status=$status
}

expect() {
    if [ "$last_status" != "$1" ]; then
        echo "The demo expected exit code $1 here: please report this as a bug." >&2
        exit 1
    fi
}

say "A file system: 20,000 files, a directory of 5,000, one 60 deep, links and attributes;"
echo "and a copy, damaged in seven places:"
"$scenes/demo.sh"

say "Undamaged"
run "$floe" check clean.img
expect 0

say "The damaged copy"
run "$floe" check damaged.img
expect 4
run_briefly 12 "$floe" explain 0x040002
cp --sparse=always damaged.img before.img

say "What a repair would do (nothing is written)"
run "$floe" repair --dry-run damaged.img
expect 1
cmp damaged.img before.img && echo "damaged.img is as it was, byte for byte."

say "The repair, with everything that it writes over saved"
run_briefly 6 "$floe" repair --yes --undo undo damaged.img
expect 1
tail -n 4 output

say "Proof: e2fsck finds nothing, Floe finds nothing"
run e2fsck -fn damaged.img
expect 0
run_briefly 1 "$floe" check damaged.img
expect 0

say "And back"
run "$floe" undo undo damaged.img
expect 0
cmp damaged.img before.img && echo "damaged.img is as it was before the repair, byte for byte."

say "A copy whose first 64 KiB were overwritten: superblock and descriptors are gone"
cp --sparse=always clean.img wiped.img
head -c 65536 /dev/zero | tr '\0' 'x' | dd of=wiped.img conv=notrunc status=none
run_briefly 20 "$floe" check wiped.img
run_briefly 12 "$floe" repair --yes wiped.img
tail -n 2 output
run e2fsck -fn wiped.img
expect 0

say "A plan, made now and carried out later"
cp --sparse=always before.img planned.img
run_briefly 4 "$floe" repair --yes --plan plan planned.img
run "$floe" repair --apply-plan plan planned.img
expect 1
e2fsck -fn planned.img >/dev/null 2>&1 && echo "e2fsck finds nothing in planned.img."

say "A copy that was cut off in the middle cannot be repaired, and is left alone"
cp --sparse=always clean.img cut.img
truncate -s 256M cut.img
run_briefly 12 "$floe" check cut.img
cp --sparse=always cut.img cut-before.img
run_briefly 20 "$floe" repair --dry-run cut.img
expect 4
cmp cut.img cut-before.img && echo "cut.img is as it was."

. "$sources/xtask/demo-files.sh"

echo
echo "Exit codes: 0 clean, 1 repaired, 4 damage found or left, 8 could not be done."
