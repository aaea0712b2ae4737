#!/usr/bin/env bash
# Makes a disk of Linux for full VMs, which syslinux starts from a BIOS, without mounting anything.
#
#   hack/fullvm-image.sh KERNEL OUT.raw
#       a small one, without root: busybox, with a shell on the screen and what it says on the serial port
#   hack/fullvm-image.sh KERNEL OUT.raw ROOT MODULES MIB
#       one of a directory, whose /sbin/init is started from an ext4 of so many MiB; MODULES is lib/modules/VERSION of the
#       kernel, of which what the root's disk and the network need is loaded first
#
# KERNEL is a bzImage; `dsec kernel install` brings one. Needs the packages busybox-static, syslinux, syslinux-common,
# mtools, cpio and, for the second, e2fsprogs and xz-utils. APPEND is added to the kernel's command line.
set -euo pipefail
[ $# = 2 ] || [ $# = 5 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
kernel=$(realpath "$1") out=$(realpath "$2") tree=${3:+$(realpath "$3")} modules=${4:+$(realpath "$4")} mib=${5:-0}
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
if [ -n "$tree" ]; then
	# In the order in which they are needed; what is not there is built in.
	mkdir root/modules root/newroot
	n=10
	for m in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk crc16 crc32c_generic mbcache jbd2 ext4 failover net_failover virtio_net; do
		f=$(find "$modules" -name "$m.ko*" | head -n 1)
		case $f in
		'') continue ;;
		*.xz) xz -dc "$f" >"root/modules/$n-$m.ko" ;;
		*) cp "$f" "root/modules/$n-$m.ko" ;;
		esac
		n=$((n + 1))
	done
	cat >root/init <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs none /dev
for m in /modules/*.ko; do insmod "$m" || echo "cannot load $m"; done
n=0
until mount -t ext4 /dev/vda2 /newroot; do
	n=$((n + 1))
	[ $n -lt 200 ] || { echo "no root file system"; exec sh; }
	usleep 50000
done 2>/dev/null
umount /dev
exec switch_root /newroot /sbin/init
END
fi
chmod 755 root/init
(cd root && find . | LC_ALL=C sort | cpio -o -H newc --quiet -R 0:0) | gzip -n -1 >initrd.gz
cat >syslinux.cfg <<'END'
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL vmlinuz
  APPEND initrd=initrd.gz console=ttyS0 console=tty0 quiet panic=-1 APPENDED
END
sed -i "s|APPENDED|${APPEND:-}|" syslinux.cfg

# 64 MiB: a bootable partition with FAT32, from 1 MiB on. Behind it the root.
start=2048 sectors=$((63 * 2048))
truncate -s $((64 + mib))M disk
dd if="$mbr" of=disk conv=notrunc bs=440 count=1 status=none
le() { printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }
printf "\x80\xfe\xff\xff\x0c\xfe\xff\xff$(le $start)$(le $sectors)" | dd of=disk conv=notrunc bs=1 seek=446 status=none
if [ -n "$tree" ]; then
	printf "\x00\xfe\xff\xff\x83\xfe\xff\xff$(le $((64 * 2048)))$(le $((mib * 2048)))" | dd of=disk conv=notrunc bs=1 seek=462 status=none
	mke2fs -q -F -t ext4 -m 0 -O ^metadata_csum,^resize_inode -L root -d "$tree" -E "offset=$((64 << 20)),nodiscard" disk "${mib}M"
fi
printf '\x55\xaa' | dd of=disk conv=notrunc bs=1 seek=510 status=none
mformat -i disk@@1M -F -T $sectors -H $start -h 64 -s 32 ::
mcopy -i disk@@1M "$kernel" ::vmlinuz
mcopy -i disk@@1M initrd.gz syslinux.cfg ::
syslinux --offset $((start * 512)) --install disk
mv disk "$out"
