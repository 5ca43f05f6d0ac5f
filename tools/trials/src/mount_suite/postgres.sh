# PostgreSQL: pgbench, a crash of the server while it runs, and recovery. The four sums of pgbench's
# tables must agree, every index must lead to every row, and no transaction that was acknowledged
# may be missing.
chown postgres .
chmod 777 "$SCRATCH"
as() { runuser -u postgres -- "$@"; }
as initdb -D data --no-locale >/dev/null
start() {
    as pg_ctl -D data -w -l data/log -o "-k $PWD -c listen_addresses=" start >/dev/null ||
        { tail data/log; false; }
}
sql() { as psql -h "$PWD" -Atqc "$1" postgres; }
start
as pgbench -h "$PWD" -iq -s 2 postgres
(cd "$SCRATCH" && as pgbench -h "$OLDPWD" -n -c 2 -T 60 -l postgres) >/dev/null 2>&1 &
sleep "$SECONDS_EACH"
kill -9 "$(head -n 1 data/postmaster.pid)"
wait
# Children of a killed postmaster end by themselves.
for _ in $(seq 100); do pgrep -u postgres -f 'postgres: ' >/dev/null || break; sleep 0.1; done
# Where nobody reaps it, a dead postmaster looks alive to the next one.
as rm -f data/postmaster.pid .s.PGSQL.*.lock
acknowledged=$(cat "$SCRATCH"/pgbench_log.* | wc -l)
start
sums=$(sql "select (select sum(delta) from pgbench_history),
    (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
    (select sum(bbalance) from pgbench_branches)")
test "$(tr '|' '\n' <<<"$sums" | sort -u | wc -l)" = 1
test "$(sql 'select count(*) from pgbench_history')" -ge "$acknowledged"
test "$acknowledged" -gt 0
sql 'create extension amcheck'
sql "select bt_index_check(indexrelid, true) from pg_index join pg_class on oid = indexrelid
    join pg_am on pg_am.oid = relam where amname = 'btree' and relpersistence = 'p'" >/dev/null
as pg_ctl -D data -m fast -w stop >/dev/null
