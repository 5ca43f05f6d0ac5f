#!/bin/sh
# debian.sh BINARY PAGES VERSION OUTPUT: makes two packages in OUTPUT. `floe` has the program, man pages,
# completions and the hook for initramfs-tools. `floe-fsck` makes it the fsck.ext4 of the system: those of
# e2fsprogs are diverted, and are back when the package is removed.
set -eu

binary=$1 pages=$2 version=$3 output=$4
here=$(dirname "$0")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
architecture=$(dpkg --print-architecture)

# The same input makes the same packages, byte for byte, where git knows the time of the last change.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)
fi
export SOURCE_DATE_EPOCH

control() { # PACKAGE DEPENDS, and a description on standard input; after all files of the package
    mkdir -p "$stage/$1/DEBIAN"
    chmod -R u=rwX,go=rX "$stage/$1"
    (cd "$stage/$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z |
        xargs -0 --no-run-if-empty md5sum >DEBIAN/md5sums)
    for script in preinst postinst prerm postrm; do
        [ ! -e "$here/$1.$script" ] ||
            install -m 755 "$here/$1.$script" "$stage/$1/DEBIAN/$script"
    done
    {
        echo "Package: $1"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: Floe <floe@example.invalid>"
        echo "Installed-Size: $(du -sk --exclude=DEBIAN "$stage/$1" | cut -f 1)"
        echo "Section: admin"
        echo "Priority: optional"
        [ -z "$2" ] || echo "Depends: $2"
        cat
    } >"$stage/$1/DEBIAN/control"
}

# A static program needs no library; any other is told by what it was linked to.
depends=
if readelf -d "$binary" 2>/dev/null | grep -q NEEDED; then
    depends="libc6, libgcc-s1"
fi

sh "$here/install.sh" "$binary" "$pages" "$stage/floe" /usr >/dev/null
# Where zsh of Debian looks for what packages bring.
mv "$stage/floe/usr/share/zsh/site-functions" "$stage/floe/usr/share/zsh/vendor-completions"
find "$stage/floe/usr/share/man" -type f -exec gzip -9n {} +
install -D -m 755 "$here/initramfs-hook" "$stage/floe/usr/share/initramfs-tools/hooks/floe"
documents=$stage/floe/usr/share/doc/floe
mkdir -p "$documents"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: floe"
    echo
    echo "Files: *"
    sed -n 's/^Copyright (c) /Copyright: /p' "$here/../LICENSE-MIT"
    echo "License: MIT or Apache-2.0"
    echo
    echo "License: MIT"
    sed 's/^$/./; s/^/ /' "$here/../LICENSE-MIT"
    echo
    echo "License: Apache-2.0"
    echo " On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0."
} >"$documents/copyright"
{
    echo "floe ($version) unstable; urgency=medium"
    echo
    echo "  * Built from the sources; what changed is in their history."
    echo
    echo " -- Floe <floe@example.invalid>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$documents/changelog.gz"
# None of them runs before somebody enables it.
for unit in "$here"/../dist/systemd/*; do
    install -D -m 644 "$unit" "$stage/floe/usr/lib/systemd/system/$(basename "$unit")"
done
# Without root, too.
install -D -m 644 "$here/../dist/systemd/floe-mount@.service" \
    "$stage/floe/usr/lib/systemd/user/floe-mount@.service"
# By these names mount(8) and umount(8) run Floe for the type fuse.floe.
mkdir -p "$stage/floe/usr/sbin"
ln -s ../bin/floe "$stage/floe/usr/sbin/mount.fuse.floe"
ln -s ../bin/floe "$stage/floe/usr/sbin/umount.fuse.floe"
for recipe in kubernetes/check-job.yaml kubernetes/check-shards.yaml kubernetes/check-snapshot.yaml; do
    install -D -m 644 "$here/../dist/$recipe" "$stage/floe/usr/share/doc/floe/examples/$(basename "$recipe")"
done
for script in kubernetes/check-snapshots.sh slurm/floe-check.sh; do
    install -D -m 755 "$here/../dist/$script" "$stage/floe/usr/share/doc/floe/examples/$(basename "$script")"
done
# Symbols are for who looks for faults: in an initramfs they are most of the file.
strip "$stage/floe/usr/bin/floe"
# For reading where there is no network: what to do, why, and with which option.
for page in guide install how-floe-decides e2fsck-options automation monitoring resume online fleet; do
    install -D -m 644 "$here/../docs/$page.md" "$stage/floe/usr/share/doc/floe/$page.md"
done
control floe "$depends" <<'END'
Description: check and repair ext2, ext3 and ext4 file systems
 Checks in parallel, shows a repair before it is made, proves it clean before
 the first byte is written, and can undo it.
END

mkdir -p "$stage/floe-fsck/usr/share/doc"
ln -s floe "$stage/floe-fsck/usr/share/doc/floe-fsck"
control floe-fsck "floe (= $version), e2fsprogs" <<'END'
Description: use floe as fsck.ext2, fsck.ext3 and fsck.ext4
 Links that make fsck(8), systemd and the initramfs run Floe. The programs of
 e2fsprogs are kept as fsck.ext4.e2fsprogs and so on, and come back when this
 package is removed. e2fsck itself stays what it is.
END

mkdir -p "$output"
for package in floe floe-fsck; do
    dpkg-deb --root-owner-group --build "$stage/$package" \
        "$output/${package}_${version}_$architecture.deb"
done
