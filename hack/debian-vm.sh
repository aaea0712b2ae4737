#!/usr/bin/env bash
# Makes the disk of a Debian server for full VMs once, keeps it in a cache, and prints its path: systemd, cloud-init, Python,
# and the agent.
#
#   hack/debian-vm.sh [PACKAGE...]        more packages of Debian
#
#   dsec image import "$(hack/debian-vm.sh)" --disk --agent --name debian-vm
#
# Needs root, bin/dsec-init (make build), mmdebstrap, and what hack/fullvm-image.sh needs. Environment: MIB of the root's file
# system (default 1024), and those of hack/debian-base.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "debian-vm: needs root" >&2; exit 1; }
cache=${DSEC_CACHE:-/var/cache/dsec} mib=${MIB:-1024} init=${INIT:-bin/dsec-init}
[ -f "$init" ] || { echo "debian-vm: $init is missing: run make build" >&2; exit 1; }

base=$(hack/debian-base.sh linux-image-cloud-amd64 systemd-sysv udev dbus kmod procps cloud-init python3 iproute2 "$@")
key=$(cat "$0" hack/fullvm-image.sh hack/fullvm-agent.sh "$init" <(echo "$base $mib") | sha256sum | cut -c1-12)
out=$cache/debian-vm-$key.raw
exec 9>"$cache/.debian-vm.lock"
flock 9
if [ -s "$out" ]; then
	echo "$out"
	exit 0
fi
work=$(mktemp -d -p "$cache" .debian-vm-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
root=$work/root
mkdir "$root"
echo "debian-vm: making $out" >&2
tar -C "$root" -xf "$base"
modules=$(echo "$root"/usr/lib/modules/*)
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
rm -rf "$root"/boot/* "$root"/usr/share/{doc,man,info} "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
INIT=$init hack/fullvm-agent.sh --root "$root"
echo debian-vm >"$root/etc/hostname"
echo '/dev/vda2 / ext4 noatime 0 1' >"$root/etc/fstab"
# No other source is asked for: there is no network to ask.
echo 'datasource_list: [ NoCloud, None ]' >"$root/etc/cloud/cloud.cfg.d/95-dsec.cfg"
for unit in apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service systemd-timesyncd.service systemd-networkd-wait-online.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
TMPDIR=$work APPEND="net.ifnames=0 systemd.show_status=0" hack/fullvm-image.sh "$work/vmlinuz" "$work/disk.raw" "$root" "$modules" "$mib"
find "$cache" -maxdepth 1 -name 'debian-vm-*.raw' -delete # of other versions
mv "$work/disk.raw" "$out"
echo "$out"
