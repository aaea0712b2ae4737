#!/bin/sh
# Makes the tar of a minimal Debian tree once, keeps it in a cache, and prints its path.
#
#   hack/debian-base.sh [PACKAGE...]
#
# The tar is named by what it was made from (suite, mirror, packages, SOURCE_DATE_EPOCH), so that the next call
# with the same inputs prints it at once. Concurrent callers wait for the one that builds. Progress and errors go to
# standard error, the path alone to standard output.
#
# Environment: DSEC_CACHE (default /var/cache/dsec), DSEC_DEBIAN_SUITE (default: the host's, else bookworm),
# DSEC_DEBIAN_MIRROR (default http://deb.debian.org/debian), SOURCE_DATE_EPOCH (default 1700000000).
set -eu

cache=${DSEC_CACHE:-/var/cache/dsec}
host_suite=$(. /etc/os-release 2>/dev/null && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}" || true)
suite=${DSEC_DEBIAN_SUITE:-${host_suite:-bookworm}}
mirror=${DSEC_DEBIAN_MIRROR:-http://deb.debian.org/debian}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
export SOURCE_DATE_EPOCH

packages=$(printf '%s\n' "$@" | tr ' ,' '\n\n' | sed '/^$/d' | LC_ALL=C sort -u | paste -sd, -)
# Change recipe when the commands below change what they make.
recipe=1
key=$(printf '%s|%s|%s|%s|%s|%s\n' "$recipe" "$(uname -m)" "$suite" "$mirror" "$SOURCE_DATE_EPOCH" "$packages" | sha256sum | cut -c1-12)
tar=$cache/debian-$suite-$key.tar

mkdir -p "$cache"
exec 9>"$cache/.debian-$key.lock"
flock 9
if [ -s "$tar" ]; then
	echo "$tar"
	exit 0
fi
if ! command -v mmdebstrap >/dev/null; then
	echo "debian-base: mmdebstrap is missing; install it with: apt-get install mmdebstrap" >&2
	exit 1
fi

tmp=$cache/.debian-$key.$$.tar
trap 'rm -f "$tmp"' EXIT
trap 'exit 130' INT TERM
echo "debian-base: building $tar (packages: ${packages:-none})" >&2
mmdebstrap --variant=minbase --mode=auto --format=tar ${packages:+--include="$packages"} \
	--aptopt='Acquire::Retries "3"' --aptopt='Acquire::http::Timeout "30"' \
	"$suite" "$tmp" "$mirror" 9>&- >&2
sync "$tmp"
mv "$tmp" "$tar"
trap - EXIT
echo "$tar"
