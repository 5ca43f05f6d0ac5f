#!/bin/sh
# fsck-links.sh ROOT FOLDER PROGRAM: makes fsck.ext2, fsck.ext3 and fsck.ext4 in ROOT/FOLDER lead to
# PROGRAM. Refuses to replace what is there, unless it is such a link.
set -eu

root=$1 folder=$2 program=$3
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    path=$root$folder/$name
    if { [ -e "$path" ] || [ -L "$path" ]; } && [ "$(readlink "$path")" != "$program" ]; then
        echo "$path is there already, and is not ours: move it away first, or install the package" \
            "floe-fsck, which does that and undoes it" >&2
        exit 1
    fi
done
mkdir -p "$root$folder"
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    ln -sfn "$program" "$root$folder/$name"
done
