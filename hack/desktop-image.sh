#!/usr/bin/env bash
# Makes the disk of a Debian desktop for full VMs once, keeps it in a cache, and prints its path: X, a window manager, a text
# editor on the whole screen, and the agent.
#
#   hack/desktop-image.sh [PACKAGE...]        more packages of Debian: firefox-esr ...
#
#   dsec image import "$(hack/desktop-image.sh)" --disk --agent --name desktop
#
# Needs root, bin/dsec-init (make build), mmdebstrap, and what hack/fullvm-image.sh needs. Environment: MIB of the root's file
# system (default 2048), EDITOR_COMMAND that is started (default mousepad /root/note.txt), and those of hack/debian-base.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "desktop-image: needs root" >&2; exit 1; }
cache=${DSEC_CACHE:-/var/cache/dsec} mib=${MIB:-2048} editor=${EDITOR_COMMAND:-mousepad /root/note.txt}
init=${INIT:-bin/dsec-init}
[ -f "$init" ] || { echo "desktop-image: $init is missing: run make build" >&2; exit 1; }

base=$(hack/debian-base.sh linux-image-amd64 systemd-sysv udev dbus kmod procps xserver-xorg-core xserver-xorg-input-libinput \
	xinit openbox mousepad xterm fonts-dejavu-core x11-utils x11-xserver-utils "$@")
key=$(cat "$0" hack/fullvm-image.sh hack/fullvm-agent.sh "$init" <(echo "$base $mib $editor") | sha256sum | cut -c1-12)
out=$cache/desktop-$key.raw
exec 9>"$cache/.desktop.lock"
flock 9
if [ -s "$out" ]; then
	echo "$out"
	exit 0
fi
work=$(mktemp -d -p "$cache" .desktop-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
root=$work/root
mkdir "$root"
echo "desktop-image: making $out" >&2
tar -C "$root" -xf "$base"
modules=$(echo "$root"/usr/lib/modules/*)
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
# What such a machine has no use for: most of the kernel's drivers, documentation, translations.
rm -rf "$root"/boot/* "$modules"/kernel/{sound,net/{wireless,bluetooth,mac80211},fs/{btrfs,xfs,ocfs2,ceph,nfs,nfsd,cifs,smb}} \
	"$modules"/kernel/drivers/{media,infiniband,isdn,mtd,iio,staging,scsi,hwmon,bluetooth,net/wireless,net/ethernet,ata,md,target,nvdimm,edac} \
	"$modules"/kernel/drivers/gpu/drm/{amd,radeon,nouveau,i915,vmwgfx,gma500} \
	"$root"/usr/share/{doc,man,info} "$root"/usr/share/locale/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
depmod=$(command -v depmod || true)
if [ -n "$depmod" ]; then "$depmod" -b "$root" "$(basename "$modules")"; else chroot "$root" depmod "$(basename "$modules")"; fi

INIT=$init hack/fullvm-agent.sh --root "$root"
echo desktop >"$root/etc/hostname"
echo '/dev/vda2 / ext4 noatime 0 1' >"$root/etc/fstab"
mkdir -p "$root/etc/X11/xorg.conf.d" "$root/etc/systemd/system/multi-user.target.wants" "$root/root"
cat >"$root/etc/X11/xorg.conf.d/10-dsec.conf" <<'END'
Section "ServerFlags"
	Option "BlankTime" "0"
	Option "StandbyTime" "0"
	Option "OffTime" "0"
EndSection
Section "Monitor"
	Identifier "Virtual-1"
	Option "PreferredMode" "1024x768"
EndSection
END
cat >"$root/root/.xinitrc" <<END
xset s off -dpms
openbox &
while :; do $editor; sleep 1; done &
wait
END
mkdir -p "$root/root/.config/openbox"
cat >"$root/root/.config/openbox/rc.xml" <<'END'
<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew></focus>
  <applications><application class="*" type="normal"><maximized>true</maximized><focus>yes</focus></application></applications>
  <mouse><context name="Client"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind></context></mouse>
</openbox_config>
END
cat >"$root/etc/systemd/system/desktop.service" <<'END'
[Unit]
Description=X with a window manager and an editor
After=systemd-udev-settle.service dbus.service
Wants=systemd-udev-settle.service
[Service]
Environment=HOME=/root DISPLAY=:0 NO_AT_BRIDGE=1 GTK_OVERLAY_SCROLLING=0
WorkingDirectory=/root
ExecStart=/usr/bin/xinit /bin/sh /root/.xinitrc -- /usr/lib/xorg/Xorg :0 vt7 -nolisten tcp -s 0 -dpms
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
END
ln -s ../desktop.service "$root/etc/systemd/system/multi-user.target.wants/desktop.service"
# Nobody waits for these.
for unit in apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service systemd-timesyncd.service systemd-networkd-wait-online.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
TMPDIR=$work APPEND="net.ifnames=0 systemd.show_status=0" hack/fullvm-image.sh "$work/vmlinuz" "$work/disk.raw" "$root" "$modules" "$mib"
find "$cache" -maxdepth 1 -name 'desktop-*.raw' -delete # of other versions
mv "$work/disk.raw" "$out"
echo "$out"
