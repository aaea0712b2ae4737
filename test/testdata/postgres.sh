# A cluster of its own, as user postgres; it serves on a Unix socket and on localhost, and survives a crash of its own.
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
dir=$(mktemp -d)
export PGDATA=$dir/data PGHOST=$dir PGPORT=15432 PGDATABASE=postgres PGUSER=postgres
initdb -A trust -E UTF8 > /dev/null
stop() { pg_ctl -m immediate stop > /dev/null 2>&1 || true; cat "$dir/log" >&2; rm -rf "$dir"; }
trap stop EXIT
start() { pg_ctl -w -t 120 -l "$dir/log" -o "-k $dir -h localhost" start > /dev/null; }
start
psql -qc 'create table t (x int primary key, y text)'
psql -qc "insert into t select i, md5(i::text) from generate_series(1, 20000) i"
psql -qc 'create index on t (y)' -c analyze -c 'vacuum full t'
[ "$(psql -Atc 'select count(distinct y) from t')" = 20000 ]
[ "$(psql -At -h localhost -c 'select sum(x) from t')" = 200010000 ]
# Parallel workers share memory by /dev/shm.
[ "$(psql -Atq -c 'set min_parallel_table_scan_size = 0; set parallel_setup_cost = 0; set parallel_tuple_cost = 0' -c 'select max(x) from t')" = 20000 ]
pg_ctl -m immediate stop > /dev/null
start
[ "$(psql -Atc 'select count(*) from t')" = 20000 ]
pg_ctl -w -m fast stop > /dev/null
