# rsync: a second run by checksums must find nothing to do.
rsync -aH /usr/include/ tree/
rsync -aH --checksum --delete --itemize-changes /usr/include/ tree/ >"$SCRATCH/changes"
test ! -s "$SCRATCH/changes"
