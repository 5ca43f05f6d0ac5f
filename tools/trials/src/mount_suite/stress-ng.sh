# stress-ng: its stressors of file systems, each of which verifies what it did. Older ones lack the last.
metamix=
if stress-ng --help | grep -q -- --metamix; then metamix="--metamix 1 --metamix-bytes 16M"; fi
stress-ng --verify --temp-path . --timeout "$SECONDS_EACH" --dentry 1 --dir 1 --dirdeep 1 \
    --dirdeep-inodes 2000 --fallocate 1 --fallocate-bytes 32M --file-ioctl 1 --fstat 1 --getdent 1 \
    --hdd 1 --hdd-bytes 16M --link 1 --open 1 --rename 1 --seek 1 --symlink 1 --utime 1 --xattr 1 \
    --chmod 1 --filename 1 $metamix
