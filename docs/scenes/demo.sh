#!/bin/sh
# The images of `make demo` and of docs/reports.md: clean.img with 20,000 files, a directory of 5,000, one 60
# deep, links and attributes; and damaged.img, a copy of it with damage in seven places. Made in the
# current folder; no root needed. What it does to the copy is printed.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
# The clock of this machine does not count.
export E2FSPROGS_FAKE_TIME=1704067200 SOURCE_DATE_EPOCH=1704067200
uuid=f10e0000-0000-4000-8000-00000000de30

truncate -s 512M clean.img
mke2fs -q -F -b 4096 -I 256 -N 32768 -L demo -U $uuid -E hash_seed=$uuid,lazy_itable_init=0,root_owner=0:0 \
    -O none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,extent,flex_bg,huge_file,metadata_csum,64bit,dir_nlink,extra_isize,has_journal clean.img

seq 1 60 >file
echo "dear floe" >letter
echo found >bottom
head -c 3000000 /dev/zero | tr '\0' 'x' >film
# In this order and by debugfs, so that inodes and blocks are the same wherever it runs.
awk 'BEGIN {
    letters = "abcdefghijklmnopqrstuvwxyz"
    print "mkdir /home\nmkdir /home/anna\nmkdir /home/ben\nmkdir /mail\nmkdir /deep"
    print "write film /home/anna/film\nwrite letter /home/anna/letter"
    for (i = 1; i <= 3; i++) print "ln /home/anna/letter /home/anna/link-" i
    print "symlink /home/ben/short ../anna/letter"
    deep = "/deep"
    for (i = 1; i <= 60; i++) { deep = deep "/" i; print "mkdir " deep }
    print "write bottom " deep "/bottom"
    for (d = 1; d <= 150; d++) {
        print "mkdir /home/ben/" d "\ncd /home/ben/" d
        for (i = 0; i < 100; i++)
            print "write file file-a" substr(letters, int(i / 26) + 1, 1) substr(letters, i % 26 + 1, 1)
    }
    print "cd /mail"
    for (i = 0; i < 5000; i++)
        print "write letter message-a" substr(letters, int(i / 676) + 1, 1) \
            substr(letters, int(i / 26) % 26 + 1, 1) substr(letters, i % 26 + 1, 1)
    print "ea_set /home/anna/letter user.colour \"sea green\""
}' >script
debugfs -w -f script clean.img >log 2>&1
# Link counts and indexed directories are left to e2fsck.
e2fsck -fyD clean.img >/dev/null 2>&1 || [ $? = 1 ]
rm file letter bottom film script log

cp --sparse=always clean.img damaged.img
film=$(debugfs -R 'bmap /home/anna/film 3' clean.img 2>/dev/null)
cat >damage <<END
set_inode_field /home/anna/letter links_count 9
clri /home/ben/1/file-aab
unlink /deep/1
freeb $film
set_inode_field /home/anna/film size 1000
set_inode_field /home/ben/3/file-aaa bmap[0] $film
END
sed 's/^/debugfs: /' damage
debugfs -w -f damage damaged.img >/dev/null 2>&1
rm damage
echo "and one byte of a name in the directory /mail, without its checksum: message-aadk -> message/aadk"
name=$(LC_ALL=C grep -abom1 message-aadk damaged.img | head -n 1 | cut -d: -f1)
printf '/' | dd of=damaged.img bs=1 seek=$((name + 7)) conv=notrunc status=none
