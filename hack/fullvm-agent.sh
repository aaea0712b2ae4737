#!/bin/sh
# Puts the agent of full VMs, dsec-init as a service, into the system of a disk.
#
#   hack/fullvm-agent.sh --root DIR      into a tree that a disk is to be made of; / is this system
#   hack/fullvm-agent.sh --deb OUT.deb   as a package of Debian's kind (needs dpkg-deb)
#
# The service is systemd's; other systems start `/usr/lib/dsec/dsec-init agent` as root at boot, and again when it ends.
# Environment: INIT, the program (default bin/dsec-init, which `make build` makes).
set -eu

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# = 2 ] || usage
here=$(cd "$(dirname "$0")/.." && pwd)
init=${INIT:-$here/bin/dsec-init}
[ -f "$init" ] || { echo "fullvm-agent: $init is missing: run make build" >&2; exit 1; }

# install ROOT
tree() {
	mkdir -p "$1/usr/lib/dsec" "$1/usr/lib/systemd/system/multi-user.target.wants"
	install -m 755 "$init" "$1/usr/lib/dsec/dsec-init"
	cat >"$1/usr/lib/systemd/system/dsec-agent.service" <<'END'
[Unit]
Description=Agent of a DSec full VM
Documentation=https://github.com/opendsec/dsec
DefaultDependencies=no
After=systemd-remount-fs.service systemd-tmpfiles-setup-dev.service local-fs.target
Conflicts=shutdown.target
Before=shutdown.target
StartLimitIntervalSec=0

[Service]
ExecStartPre=-/sbin/modprobe -qa virtio_console virtio_net
ExecStart=/usr/lib/dsec/dsec-init agent
Restart=always
RestartSec=2
Delegate=yes
# dsec-init and commands go when the agent has gone: a node then knows that the system ends, not they.
KillMode=mixed
TasksMax=infinity
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
END
	ln -sf ../dsec-agent.service "$1/usr/lib/systemd/system/multi-user.target.wants/dsec-agent.service"
}

case $1 in
--root)
	tree "${2%/}"
	;;
--deb)
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM
	chmod 755 "$work"
	tree "$work"
	mkdir "$work/DEBIAN"
	cat >"$work/DEBIAN/control" <<END
Package: dsec-agent
Version: $(cd "$here" && git log -1 --format=%cd-%h --date=format:%Y.%m.%d 2>/dev/null || echo 0)
Architecture: amd64
Maintainer: DSec <dsec@localhost>
Section: admin
Priority: optional
Description: agent of DSec full VMs
 Runs commands, moves files and opens ports for a DSec node in the machine that it is installed in.
END
	cat >"$work/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl --no-block restart dsec-agent.service
fi
END
	cat >"$work/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl --no-block stop dsec-agent.service
fi
END
	chmod 755 "$work/DEBIAN/postinst" "$work/DEBIAN/prerm"
	dpkg-deb --root-owner-group -Zgzip --build "$work" "$2" >/dev/null
	;;
*) usage ;;
esac
