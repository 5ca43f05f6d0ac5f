# The second half of `make demo`, sourced by demo.sh: an image filled from a folder, listed and read without a mount,
# mounted without the kernel's ext4, used, its server killed, recovered, checked, and approved by e2fsck.

say "An image filled from a folder, without root: the sources of Floe"
run "$floe" mkfs --from "dir:$sources/crates" files.img 256M
expect 0
run_briefly 5 "$floe" ls -l files.img /
echo "$ floe cat files.img /cli/Cargo.toml | cmp - crates/cli/Cargo.toml"
"$floe" cat files.img /cli/Cargo.toml | cmp - "$sources/crates/cli/Cargo.toml" && echo "the same bytes"
run e2fsck -fn files.img
expect 0

if [ ! -w /dev/fuse ] || { [ "$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; }; then
    say "The mount is left out: it needs /dev/fuse, and root or fusermount3 (package fuse3)"
    return 0
fi

# Whatever ends the demo also ends the mount.
trap '"$floe" umount mnt 2>/dev/null || umount -l mnt 2>/dev/null || true; rm -rf "$folder"' EXIT

say "Mounted without the kernel's ext4"
mkdir mnt
run "$floe" mount files.img mnt
expect 0
run cp "$sources/README.md" mnt/
run sync mnt/README.md
run cp -r mnt/cli mnt/copy
run "$floe" status mnt

say "The server is killed, as a crash would end it; README.md was acknowledged by fsync"
server=$("$floe" status mnt | sed -n 's/^process: //p')
show "kill -9 $server"
kill -9 "$server"
run "$floe" umount mnt
expect 8
run "$floe" check files.img
expect 0

say "The next mount recovers the journal"
run "$floe" mount files.img mnt
expect 0
cmp mnt/README.md "$sources/README.md" && echo "mnt/README.md is whole."
echo "What no fsync acknowledged may be missing, as after any crash, but no change is there by half:"
run ls mnt
run rm -rf mnt/copy
run "$floe" umount mnt
expect 0
run e2fsck -fn files.img
expect 0
