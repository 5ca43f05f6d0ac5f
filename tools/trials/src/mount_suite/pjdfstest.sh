# The crate pjdfstest: thousands of cases of what POSIX says about names, owners and modes.
cat >"$SCRATCH/config" <<CONFIG
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
stat_st_birthtime = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
CONFIG
chmod 777 .
pjdfstest -c "$SCRATCH/config" -p .
