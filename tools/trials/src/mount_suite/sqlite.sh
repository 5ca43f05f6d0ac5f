# SQLite: a program that inserts rows is killed. The database must be whole, and no row that was
# reported may be missing.
sqlite3 db 'create table t(a integer primary key, b text)'
seq 20000 | sed 's/.*/insert into t(b) values(hex(randomblob(500))); select max(a) from t;/' \
    >"$SCRATCH/inserts"
for mode in delete wal; do
    sqlite3 db "pragma journal_mode=$mode" >/dev/null
    for round in 1 2 3; do
        sqlite3 db <"$SCRATCH/inserts" >"$SCRATCH/reported" 2>/dev/null &
        sleep 1
        kill -9 $!
        wait $! || true
        test "$(sqlite3 db 'pragma integrity_check')" = ok
        reported=$(grep -E '^[0-9]+$' "$SCRATCH/reported" | tail -n 2 | head -n 1)
        test "$(sqlite3 db 'select max(a) from t')" -ge "${reported:-0}"
    done
done
