# A server as user redis, in the background, with its data on disk.
dir=$(mktemp -d)
cd "$dir"
start() {
	redis-server --port 16379 --bind 127.0.0.1 ::1 --dir "$dir" --appendonly yes --daemonize yes --pidfile "$dir/pid" --logfile "$dir/log" > /dev/null
	for _ in $(seq 600); do
		if [ "$(redis-cli -p 16379 ping 2> /dev/null)" = PONG ]; then return; fi
		sleep 0.1
	done
	cat "$dir/log" >&2
	exit 1
}
stop() {
	pid=$(cat "$dir/pid")
	redis-cli -p 16379 shutdown
	while [ -d "/proc/$pid" ]; do sleep 0.05; done
}
start
redis-cli -p 16379 set key value > /dev/null
redis-cli -p 16379 bgsave > /dev/null
stop
start
[ "$(redis-cli -h localhost -p 16379 get key)" = value ]
stop
rm -rf "$dir"
