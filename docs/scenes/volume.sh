#!/bin/sh
# The volume of docs/automation.md: harmless damage (a link count, a block that nobody uses) in dev/sdb1,
# and besides it a name that leads nowhere in dev/sdc1. Made in the current folder; no root needed.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
# The clock of this machine does not count.
export E2FSPROGS_FAKE_TIME=1704067200 SOURCE_DATE_EPOCH=1704067200
uuid=f10e0000-0000-4000-8000-0000000000b1

mkdir -p dev var/lib/floe
truncate -s 64M dev/sdb1
mke2fs -q -F -b 4096 -I 256 -N 1024 -L data -U $uuid -E hash_seed=$uuid,lazy_itable_init=0,root_owner=0:0 \
    -O none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,extent,flex_bg,metadata_csum,64bit,has_journal dev/sdb1
echo invoice >file
debugfs -w -f - dev/sdb1 >/dev/null 2>&1 <<END
write file invoice
write file letter
set_inode_field <2> links_count 77
setb 9000
END
rm file
cp --sparse=always dev/sdb1 dev/sdc1
debugfs -w -R "clri letter" dev/sdc1 2>/dev/null
