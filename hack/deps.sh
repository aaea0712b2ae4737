#!/usr/bin/env bash
# Installs the distribution's packages that building, running and testing need; does nothing when all are there.
#
#   hack/deps.sh [test|bench|kernel|kernel-build|race]
set -euo pipefail
if ! command -v go >/dev/null 2>&1; then
	echo "Go 1.26 or newer is needed: https://go.dev/doc/install" >&2
	exit 1
fi
need=()
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ]; }
have mmdebstrap   || need+=(mmdebstrap)
have mkfs.btrfs   || need+=(btrfs-progs)
have fsck.erofs   || need+=(erofs-utils)
have nft          || need+=(nftables)
have git          || need+=(git)
have python3      || need+=(python3 python3-venv)
have curl         || need+=(curl)
# The base is Debian's on Ubuntu too; downloads are checked.
[ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || need+=(debian-archive-keyring)
[ -f /etc/ssl/certs/ca-certificates.crt ] || need+=(ca-certificates)
if [ "${1:-}" = test ]; then # microVMs, and the clients that tests run
	have qemu-system-x86_64 || need+=(qemu-system-x86)
	have mke2fs     || need+=(e2fsprogs)
	have qemu-img   || need+=(qemu-utils)
	[ -f /usr/share/OVMF/OVMF_CODE_4M.fd ] || need+=(ovmf)
	have xz         || need+=(xz-utils)
	have cpio       || need+=(cpio)
	have npm        || need+=(npm)
	have bindfs     || need+=(bindfs)
fi
if [ "${1:-}" = bench ]; then
	have runc       || need+=(runc)
	have ctr        || need+=(containerd)
	have bwrap      || need+=(bubblewrap)
	have umoci      || need+=(umoci)
fi
if [ "${1:-}" = kernel ]; then
	have qemu-system-x86_64 || need+=(qemu-system-x86)
	have mke2fs     || need+=(e2fsprogs)
	have mkfs.xfs   || need+=(xfsprogs)
	have xz         || need+=(xz-utils)
fi
if [ "${1:-}" = kernel-build ]; then # of microVMs' own
	have gcc        || need+=(gcc libc6-dev)
	have make       || need+=(make)
	have bc         || need+=(bc)
	have flex       || need+=(flex)
	have bison      || need+=(bison)
	have xz         || need+=(xz-utils)
	[ -f /usr/include/gelf.h ] || need+=(libelf-dev)
fi
if [ "${1:-}" = race ]; then
	have gcc        || need+=(gcc libc6-dev)
	# Disks of full VMs (hack/fullvm-image.sh).
	have busybox    || need+=(busybox-static)
	have syslinux   || need+=(syslinux syslinux-common)
	have mcopy      || need+=(mtools)
fi
if [ "${#need[@]}" -gt 0 ]; then
	if [ "$(id -u)" != 0 ]; then
		echo "root is needed to install: ${need[*]}" >&2
		exit 1
	fi
	echo "installing ${need[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
