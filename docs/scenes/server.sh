#!/bin/sh
# The disk of docs/guide.md: a small server's root file system as a power failure and a bad cable left
# it. Makes dev/sda1 (sound), dev/sda2 (damaged) and sda2-lost.img (its beginning was overwritten) in
# the current folder, and mnt/usb for copies; no root needed.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
# The clock of this machine does not count.
export E2FSPROGS_FAKE_TIME=1704067200 SOURCE_DATE_EPOCH=1704067200

make() { # FILE MIB LABEL UUID
    truncate -s "$2M" "$1"
    mke2fs -q -F -b 4096 -I 256 -N 8192 -L "$3" -U "$4" -E hash_seed="$4",lazy_itable_init=0,root_owner=0:0 \
        -O none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,extent,flex_bg,huge_file,metadata_csum,64bit,dir_nlink,extra_isize,has_journal "$1"
}

# debugfs does not say by its exit code that a command failed.
edit() { # FILE, commands on standard input
    debugfs -w -f /dev/stdin "$1" >edit.log 2>&1
    if grep -v -e '^debugfs' -e '^Allocated inode' -e '^$' edit.log; then exit 1; fi
    rm edit.log
}

mkdir dev
make dev/sda1 64 boot f10e0000-0000-4000-8000-0000000000a1
make dev/sda2 256 root f10e0000-0000-4000-8000-0000000000a2

text() { awk -v name="$1" -v lines="$2" 'BEGIN { for (i = 1; i <= lines; i++) print name ": line " i }'; }
for file in hostname fstab nginx.conf passwd; do text "$file" 20 >"$file"; done
text syslog 20000 >syslog
text table 30000 >table
text photo 4000 >photo
{
    echo mkdir /boot
    for folder in etc etc/nginx home home/anna usr usr/bin var var/log var/lib var/lib/postgresql; do
        echo "mkdir /$folder"
    done
    for file in hostname fstab passwd; do echo "write $file /etc/$file"; done
    echo "write nginx.conf /etc/nginx/nginx.conf"
    for number in 1 2 3 4 5 6; do echo "write photo /home/anna/photo-$number.jpg"; done
    for program in ls cp mv sh vi; do echo "write passwd /usr/bin/$program"; done
    echo "write syslog /var/log/syslog"
    for number in 16384 16385 16386; do echo "write table /var/lib/postgresql/$number"; done
} | edit dev/sda2
# debugfs leaves the link counts of folders to others.
e2fsck -fy dev/sda2 >/dev/null 2>&1 || [ $? = 1 ]

rm hostname fstab nginx.conf passwd syslog table photo

cp --sparse=always dev/sda2 sda2-lost.img
dd if=/dev/zero bs=4096 count=2 conv=notrunc of=sda2-lost.img status=none

# What went wrong: an inode was zeroed, a folder lost its name, a map points into another file, bits
# and counts were never written; and the journal holds the last transaction.
syslog=/var/log/syslog
table=$(debugfs -R "bmap /var/lib/postgresql/16385 2" dev/sda2 2>/dev/null)
head -c 4096 /dev/zero | tr '\0' 'j' >block
edit dev/sda2 <<END
clri /etc/hostname
unlink /etc/nginx
set_inode_field /home/anna/photo-3.jpg size 100
set_inode_field $syslog links_count 2
set_inode_field $syslog bmap[1] $table
freeb $table
setb 30000
ssv state 2
ssv last_mounted /
END
edit dev/sda2 <<END
jo
jw -b 20001 block
jc
END
rm block

# Where the guide copies the disk to: a copy is there already, for those who have no ddrescue.
mkdir -p mnt/usb mnt/system
cp --sparse=always dev/sda2 mnt/usb/sda2.img
