# The crate fsx: random reads, writes, truncations and mappings of one file, each verified.
# Without collapse and insert: FUSE does not pass them on.
{
    printf '[weights]\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\ntruncate = 2\n'
    printf 'fsync = 0.2\nfdatasync = 0.2\nposix_fallocate = 1\npunch_hole = 1\nsendfile = 1\n'
    printf 'copy_file_range = 1\ninvalidate = 1\nclose_open = 1\n'
} >"$SCRATCH/weights"
fsx -q -f "$SCRATCH/weights" -N "$OPERATIONS" -S 7 -P "$SCRATCH" fsxfile
