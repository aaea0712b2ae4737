# What a sandbox called worker.example shows to programs.
say() { echo "world: $*" >&2; exit 1; }

# /dev: the usual devices work, standard streams and terminals included.
echo gone > /dev/null
[ "$(head -c 8 /dev/zero | od -An -tx1 | tr -d ' ')" = 0000000000000000 ] || say /dev/zero
[ "$(head -c 16 /dev/urandom | wc -c)" = 16 ] || say /dev/urandom
[ "$(head -c 16 /dev/random | wc -c)" = 16 ] || say /dev/random
! echo full > /dev/full 2> /dev/null || say "/dev/full takes bytes"
echo out > /dev/stdout
echo err > /dev/stderr
[ "$(echo in | cat /dev/stdin)" = in ] || say /dev/stdin
[ "$(cat <(echo fd))" = fd ] || say "process substitution needs /dev/fd"
script=$(python3 -c 'import os, pty; m, s = pty.openpty(); print(os.ttyname(s)); os.close(m)')
[ "${script#/dev/pts/}" != "$script" ] || say "a terminal is called $script"

# /proc and /sys: this sandbox's processes, and nothing to write.
[ "$(readlink /proc/self)" != "" ] || say /proc/self
[ -r /proc/cpuinfo ] && [ -r /proc/meminfo ] && [ -r /proc/mounts ] && [ -r /proc/self/maps ] || say "/proc lacks files"
[ "$(ls -d /proc/[0-9]* | wc -l)" -lt 64 ] || say "other sandboxes' processes"
[ "$(nproc)" -ge 1 ] || say nproc
[ -d /sys/class/net/lo ] && [ -r /sys/devices/system/cpu/online ] || say "/sys lacks files"
[ "$(ls /sys/class/net)" = lo ] || say "more than loopback"
! (echo x > /proc/sys/kernel/hostname) 2> /dev/null || say "/proc/sys can be written"
[ "$(cat /proc/kcore 2> /dev/null | head -c 1 | wc -c)" = 0 ] || say /proc/kcore

# /dev/shm in memory; /tmp and /var/tmp on the disk; all for everyone.
[ "$(stat -f -c %T /dev/shm)" = tmpfs ] || say "/dev/shm is $(stat -f -c %T /dev/shm)"
[ "$(stat -f -c %T /tmp)" = "$(stat -f -c %T /)" ] || say "/tmp is not on the writable layer"
for d in /tmp /var/tmp /dev/shm; do
	[ "$(stat -c %a $d)" = 1777 ] || say "mode of $d"
	f=$(mktemp -p $d)
	head -c 1000000 /dev/urandom > "$f"
	rm "$f"
done
f=$(mktemp)
printf '#!/bin/sh\necho ran\n' > "$f"
chmod +x "$f"
[ "$("$f")" = ran ] || say "programs in /tmp do not run"
rm "$f"

# Names.
[ "$(hostname)" = worker.example ] || say "hostname $(hostname)"
[ "$(cat /etc/hostname)" = worker.example ] || say /etc/hostname
getent ahosts localhost | grep -q '^127.0.0.1 ' || say "localhost in /etc/hosts"
getent ahosts localhost | grep -q '^::1 ' || say "localhost in /etc/hosts by IPv6"
getent hosts worker.example > /dev/null || say "its own name does not resolve"
start=$(date +%s)
! getent hosts no.such.example > /dev/null || say "a name outside resolves"
[ $(($(date +%s) - start)) -lt 30 ] || say "a name outside takes too long to fail"

# The user that was asked for, with a home and a path.
[ "$(id -un)" = "$USER" ] && [ "$HOME" = "$(getent passwd "$USER" | cut -d: -f6)" ] || say "user $USER, home $HOME"
command -v sh > /dev/null || say "PATH $PATH"
if [ "$(id -u)" = 0 ]; then
	echo 10.9.8.7 made-here >> /etc/hosts
	[ "$(getent hosts made-here | cut -d' ' -f1)" = 10.9.8.7 ] || say "/etc/hosts cannot be changed"
	sed -i /made-here/d /etc/hosts
	u=$(mktemp -d)
	chown games:games "$u"
	[ "$(su games -s /bin/sh -c "touch $u/x; stat -c %U $u/x")" = games ] || say "su"
	rm -r "$u"
fi
