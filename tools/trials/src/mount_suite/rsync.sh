# rsync: a second run by checksums must find nothing to do.
from=/usr/include/linux
test -d "$from" || from=/usr/include
rsync -aH "$from/" tree/
rsync -aH --checksum --delete --itemize-changes "$from/" tree/ >"$SCRATCH/changes"
test ! -s "$SCRATCH/changes"
