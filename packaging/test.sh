#!/bin/sh
# test.sh FOLDER: installs the packages in FOLDER into roots of their own, with a package that stands for
# e2fsprogs, and removes them again. Nothing of this system is touched. (`cargo xtask boot` does it with a
# whole Debian.)
set -eu

packages=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
# A user's language, in which dpkg-divert speaks, and which no script may depend on.
export LC_ALL=C.UTF-8 LANGUAGE=de

e2fsprogs() { # FILE VERSION FOLDER: what stands for e2fsprogs, with its programs in FOLDER
    # Both folders are somebody's in any system; dpkg would take one away that is left empty.
    mkdir -p "$top/$2/DEBIAN" "$top/$2/sbin" "$top/$2/usr/sbin"
    printf 'Package: e2fsprogs\nVersion: %s\nArchitecture: all\nMaintainer: x\nDescription: x\n' "$2" \
        >"$top/$2/DEBIAN/control"
    for name in fsck.ext2 fsck.ext3 fsck.ext4; do
        echo "theirs $2" >"$top/$2/$3/$name"
    done
    dpkg-deb --root-owner-group --build "$top/$2" "$1" >/dev/null
}
new_root() {
    root=$top/$1
    mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
    : >"$root/var/lib/dpkg/status"
    : >"$root/var/lib/dpkg/available"
}
in_root() {
    dpkg --root="$root" --force-script-chrootless --force-depends --force-not-root "$@" >"$top/log" 2>&1 ||
        { cat "$top/log" >&2; exit 1; }
}
fails() { echo "packaging: $*" >&2; exit 1; }
ours() { # WHEN
    for name in fsck.ext2 fsck.ext3 fsck.ext4; do
        [ "$(readlink "$root/sbin/$name")" = /usr/bin/floe ] || fails "$1: $name is not ours"
    done
}
theirs() { # WHEN VERSION
    for name in fsck.ext2 fsck.ext3 fsck.ext4; do
        [ "$(cat "$root/sbin/$name")" = "theirs $2" ] || fails "$1: $name is not theirs"
        for left in "$root/sbin/$name".*; do
            [ ! -e "$left" ] || fails "$1: ${left#"$root"} is there"
        done
    done
    [ ! -s "$root/var/lib/dpkg/diversions" ] || fails "$1: a diversion is left"
}

e2fsprogs "$top/1.deb" 1 sbin
e2fsprogs "$top/2.deb" 2 usr/sbin

new_root separate
in_root --install "$top/1.deb" "$packages"/floe_*.deb
theirs "with the package floe alone" 1
"$root/usr/bin/floe" --version | grep -q '^floe ' || fails "the program does not run"
[ -s "$root/usr/share/man/man8/floe-fsck.8.gz" ] || fails "there is no man page"
[ -s "$root/usr/share/bash-completion/completions/floe" ] || fails "there are no completions"
[ -s "$root/usr/lib/systemd/system/floe-check@.timer" ] || fails "there is no timer"
[ -s "$root/usr/lib/systemd/user/floe-mount@.service" ] || fails "there is no unit of users"
for name in mount umount; do
    "$root/usr/sbin/$name.fuse.floe" --help >/dev/null || fails "$name.fuse.floe does not run"
done
(cd "$root" && md5sum --quiet --check var/lib/dpkg/info/floe.md5sums) || fails "the sums are wrong"
in_root --install "$packages"/floe-fsck_*.deb
ours "installed"
for name in fsck.ext2 fsck.ext3 fsck.ext4; do
    [ "$(cat "$root/sbin/$name.e2fsprogs")" = "theirs 1" ] || fails "their $name is lost"
done
in_root --install "$top/1.deb"
ours "after an update of theirs"
in_root --install "$packages"/floe-fsck_*.deb
ours "after an update of ours"
in_root --remove floe-fsck
theirs "after the removal" 1
mkdir -p "$root/var/lib/floe"
touch "$root/var/lib/floe/floe-srv.prom" "$root/var/lib/floe/undo"
in_root --purge floe
[ ! -e "$root/usr/bin/floe" ] || fails "the program is left"
[ ! -e "$root/var/lib/floe/floe-srv.prom" ] || fails "figures are left"
[ -e "$root/var/lib/floe/undo" ] || fails "an undo file is gone"

# Where /sbin is /usr/sbin, and an upgrade of the system calls the files of e2fsprogs by the other path.
new_root merged
mkdir -p "$root/usr/sbin"
ln -s usr/sbin "$root/sbin"
in_root --install "$top/1.deb" "$packages"/floe_*.deb "$packages"/floe-fsck_*.deb
ours "where /sbin is /usr/sbin"
in_root --install "$top/2.deb"
ours "after an upgrade of the system"
in_root --remove floe-fsck
theirs "removed after an upgrade of the system" 2
in_root --install "$packages"/floe-fsck_*.deb
ours "installed after an upgrade of the system"
in_root --remove floe-fsck
theirs "removed again" 2
echo "packaging: both packages install, survive updates, and leave nothing behind"
