#!/usr/bin/env bash
# Makes a disk of a small Linux for full VMs, without root: Debian's kernel and busybox, started by syslinux from a BIOS,
# with a shell on the screen and what it says on the serial port.
#
#   hack/fullvm-image.sh KERNEL OUT.raw
#
# KERNEL is a bzImage; `dsec kernel install` brings one. Needs the packages busybox-static, syslinux, syslinux-common,
# mtools and cpio.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
kernel=$(realpath "$1") out=$(realpath "$2")
for p in busybox syslinux mformat mcopy cpio; do
	command -v "$p" >/dev/null || { echo "fullvm-image: $p is missing: apt-get install busybox-static syslinux syslinux-common mtools cpio" >&2; exit 1; }
done
mbr=/usr/lib/SYSLINUX/mbr.bin
[ -f "$mbr" ] || mbr=/usr/lib/syslinux/mbr/mbr.bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir -p root/{bin,dev,proc,sys,root}
cp "$(command -v busybox)" root/bin/busybox
ln -s busybox root/bin/sh
cat >root/init <<'END'
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root PS1='# '
cd /root
echo "system is up" >/dev/ttyS0
# A shell that ends is started again.
while :; do
	setsid sh -c 'exec sh -i </dev/tty1 >/dev/tty1 2>&1'
done
END
chmod 755 root/init
(cd root && find . | LC_ALL=C sort | cpio -o -H newc --quiet -R 0:0) | gzip -n -1 >initrd.gz
cat >syslinux.cfg <<'END'
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL vmlinuz
  APPEND initrd=initrd.gz console=ttyS0 console=tty0 quiet panic=-1
END

# 64 MiB: one bootable partition with FAT32, from 1 MiB on.
start=2048 sectors=$((63 * 2048))
truncate -s 64M disk
dd if="$mbr" of=disk conv=notrunc bs=440 count=1 status=none
le() { printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }
printf "\x80\xfe\xff\xff\x0c\xfe\xff\xff$(le $start)$(le $sectors)" | dd of=disk conv=notrunc bs=1 seek=446 status=none
printf '\x55\xaa' | dd of=disk conv=notrunc bs=1 seek=510 status=none
mformat -i disk@@1M -F -T $sectors -H $start -h 64 -s 32 ::
mcopy -i disk@@1M "$kernel" ::vmlinuz
mcopy -i disk@@1M initrd.gz syslinux.cfg ::
syslinux --offset $((start * 512)) --install disk
mv disk "$out"
