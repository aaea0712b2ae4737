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
	if ! "$python" -m venv "$venv"; then
		echo "test-python: the venv module is missing: apt-get install python3-venv" >&2
		exit 1
	fi
	"$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-test.txt
	"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch "$venv/.complete"
fi
exec 9>&-

"$venv/bin/ruff" format --check --quiet . || { echo "test-python: run $venv/bin/ruff format sdk/python" >&2; exit 1; }
"$venv/bin/ruff" check --quiet .
"$venv/bin/mypy"
if [ "$(id -u)" = 0 ]; then
	export DSEC_REQUIRE_NODE=1
fi
exec "$venv/bin/pytest" "$@"
