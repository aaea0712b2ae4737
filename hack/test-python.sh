#!/usr/bin/env bash
# Tests the Python SDK: types, style, unit tests, and everything on a real node.
#
#   hack/test-python.sh [PYTEST ARGUMENT...]
#
# The virtual environment is made once and kept in DSEC_CACHE (default /var/cache/dsec), named by what it is made
# from. Python 3.11 or newer: PYTHON, else python3. Without root, the tests that need a node are skipped.
set -euo pipefail
cd "$(dirname "$0")/../sdk/python"
python=${PYTHON:-python3}
cache=${DSEC_CACHE:-/var/cache/dsec}

version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 11))') || {
	echo "test-python: $python is ${version:-missing}; 3.11 or newer is needed: apt-get install python3 python3-venv, or set PYTHON" >&2
	exit 1
}
key=$(printf '%s|%s|' "$version" "$PWD" | cat - pyproject.toml requirements-test.txt | sha256sum | cut -c1-12)
venv=$cache/venv-$key

mkdir -p "$cache"
exec 9>"$cache/.venv-$key.lock"
flock 9
if [ ! -e "$venv/.complete" ]; then
	echo "test-python: making $venv" >&2
	rm -rf "$venv"
	if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian keeps it in a package of its own
		if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
			echo "test-python: $python has no venv module: apt-get install python3-venv" >&2
			exit 1
		fi
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
	fi
	"$python" -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-test.txt
	"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch "$venv/.complete"
fi
touch "$venv"
# Of other working trees and older requirements.
find "$cache" -maxdepth 1 -name 'venv-*' -mtime +30 -exec rm -rf {} +
exec 9>&-

"$venv/bin/ruff" format --check --quiet . || { echo "test-python: run $venv/bin/ruff format sdk/python" >&2; exit 1; }
"$venv/bin/ruff" check --quiet .
"$venv/bin/mypy"
if [ "$(id -u)" = 0 ]; then
	export DSEC_REQUIRE_NODE=1
fi
exec "$venv/bin/pytest" "$@"
