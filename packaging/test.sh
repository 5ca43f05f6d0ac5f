#!/bin/sh
# test.sh FOLDER: installs the packages in FOLDER into a root of their own, with a package that stands for
# e2fsprogs, and removes them again. Nothing of this system is touched.
set -eu

packages=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/e2/DEBIAN" "$root/e2/sbin"
: >"$root/var/lib/dpkg/status"
: >"$root/var/lib/dpkg/available"

printf 'Package: e2fsprogs\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' \
    >"$root/e2/DEBIAN/control"
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    echo "theirs" >"$root/e2/sbin/$name"
done
dpkg-deb --root-owner-group --build "$root/e2" "$root/e2fsprogs.deb" >/dev/null

in_root() {
    dpkg --root="$root" --force-script-chrootless --force-depends --force-not-root "$@" >"$root/log" 2>&1 ||
        { cat "$root/log" >&2; exit 1; }
}
fails() { echo "packaging: $*" >&2; exit 1; }

in_root --install "$root/e2fsprogs.deb" "$packages"/floe_*.deb
[ "$(cat "$root/sbin/fsck.ext4")" = theirs ] || fails "the package floe alone changed fsck.ext4"
"$root/usr/bin/floe" --version | grep -q '^floe ' || fails "the program does not run"
[ -s "$root/usr/share/man/man8/floe-fsck.8.gz" ] || fails "there is no man page"
[ -s "$root/usr/share/bash-completion/completions/floe" ] || fails "there are no completions"
[ -s "$root/usr/lib/systemd/system/floe-check@.timer" ] || fails "there is no timer"

in_root --install "$packages"/floe-fsck_*.deb
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    [ "$(readlink "$root/sbin/$name")" = /usr/bin/floe ] || fails "$name is not ours"
    [ "$(cat "$root/sbin/$name.e2fsprogs")" = theirs ] || fails "their $name is lost"
done
# An update of e2fsprogs leaves ours alone.
in_root --install "$root/e2fsprogs.deb"
[ "$(readlink "$root/sbin/fsck.ext4")" = /usr/bin/floe ] || fails "an update of theirs took ours away"
# And so does an update of ours.
in_root --install "$packages"/floe-fsck_*.deb
[ "$(readlink "$root/sbin/fsck.ext4")" = /usr/bin/floe ] || fails "an update of ours took it away"

in_root --remove floe-fsck
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    [ "$(cat "$root/sbin/$name")" = theirs ] || fails "their $name is not back"
    [ ! -e "$root/sbin/$name.e2fsprogs" ] || fails "a second $name is left"
done
in_root --remove floe
[ ! -e "$root/usr/bin/floe" ] || fails "the program is left"
echo "packaging: both packages install, survive updates, and leave nothing behind"
