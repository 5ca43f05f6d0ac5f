# packages.sh VERSION: runs in a Debian without Floe, and leaves it with Floe as its fsck.ext4 and an
# initramfs for the kernel of this version. Each line "tried ..." is something that was seen to be so.
set -euo pipefail
version=$1
cd /var/tmp

fails() { echo "packages.sh: $*" >&2; exit 1; }
tried() { echo "tried $*"; }
# apt, as an administrator who speaks German; what it says matters only if it fails.
apt() { LANGUAGE=de apt-get --yes --no-install-recommends "$@" >apt.log 2>&1 || { cat apt.log >&2; fails "apt $*"; }; }
names="fsck.ext2 fsck.ext3 fsck.ext4"

ours() {
    for name in $names; do
        [ "$(readlink "$(command -v $name)")" = /usr/bin/floe ] || fails "$1: $name is not ours"
    done
}
theirs() {
    for name in $names; do
        $name -V 2>&1 | grep '^e2fsck ' >/dev/null || fails "$1: $name is not theirs"
    done
    [ -z "$(dpkg-divert --list '*fsck.ext*')" ] || fails "$1: a diversion is left"
    [ -z "$(find / -xdev -name '*.e2fsprogs*')" ] || fails "$1: a renamed file is left"
    dpkg --verify e2fsprogs >verified
    [ ! -s verified ] || fails "$1: e2fsprogs is not as it was: $(cat verified)"
}

update-initramfs -c -k "$version" 2>&1
lsinitramfs "/boot/initrd.img-$version" >list
! grep -q 'bin/floe$' list || fails "floe is there before it was installed"

apt install ./floe.deb
theirs "with the package floe alone"
floe --version | grep '^floe ' >/dev/null || fails "the program does not run"
for page in floe floe-check floe-fsck; do
    man --warnings "$page" 2>warnings >page || fails "man $page"
    [ -s page ] && [ ! -s warnings ] || fails "man $page: $(cat warnings)"
done
tried "floe: $(floe --version) installs; $(dpkg -L floe | grep -c '/man[18]/') man pages are found"
bash -n /usr/share/bash-completion/completions/floe
dpkg --verify floe >verified
[ ! -s verified ] || fails "floe: $(cat verified)"

apt install ./floe-fsck.deb
ours "installed"
for name in $names; do
    "$(dpkg-divert --truename "$(dpkg -L e2fsprogs | grep "sbin/$name\$" | head -n 1)")" -V 2>&1 |
        grep '^e2fsck ' >/dev/null || fails "their $name is lost"
done
e2fsck -V 2>&1 | grep '^e2fsck ' >/dev/null || fails "e2fsck is not what it was"
tried "floe-fsck: $names lead to floe; theirs stay as NAME.e2fsprogs, and e2fsck as it was"

truncate -s 32M image
mke2fs -q -t ext4 image
debugfs -w -R 'sif <2> links_count 9' image 2>/dev/null
status=0
fsck -t ext4 -f -p /var/tmp/image >said || status=$?
[ $status = 1 ] || fails "fsck -p ended with $status: $(cat said)"
e2fsck -fn image >/dev/null 2>&1 || fails "e2fsck finds something after the repair"
rm image
tried "fsck -t ext4 -f -p of util-linux: $(tail -n 1 said), exit code $status"

apt install --reinstall ./floe.deb ./floe-fsck.deb
ours "after an update"
tried "both are installed over themselves, and are still there"

apt remove floe-fsck
theirs "removed"
lsinitramfs "/boot/initrd.img-$version" >list
! grep -q 'bin/floe$' list || fails "floe is left in the initramfs"
mkdir -p /var/lib/floe
touch /var/lib/floe/floe-srv.prom
apt purge floe-fsck floe
find / -xdev -name '*floe*' ! -name 'floe-scene*' ! -path '/var/tmp/*' ! -path '/var/cache/man/*' >left
[ ! -s left ] || fails "files are left: $(cat left)"
tried "removed: fsck.ext4 is e2fsck's again, also in the initramfs, and no file is left"

apt install ./floe.deb ./floe-fsck.deb
ours "installed again"
lsinitramfs -l "/boot/initrd.img-$version" >list
for name in $names; do
    grep -q "sbin/$name -> .*/floe\$" list || fails "$name is not in the initramfs: $(grep -e fsck -e floe list)"
done
grep -q ' usr/bin/floe$' list || fails "floe is not in the initramfs: $(grep -e fsck -e floe list)"
grep -q 'sbin/logsave$' list || fails "logsave is not in the initramfs"
tried "update-initramfs, which the package calls: $(grep -c . list) files, with$(sed -n 's/^.* \(usr\/sbin\/fsck.ext4 -> .*\)$/ \1/p' list)"
apt-get clean
# The packages stay: a scene removes and installs them.
rm -f apt.log list page warnings verified said left packages.sh
