#!/bin/sh
# Makes the template of the code interpreter for E2B clients on a node: a Debian base with IPython, pandas and matplotlib, a user called user, and
# the server of cluster/e2b/interpreter, which each new sandbox starts.
#
#   hack/code-interpreter.sh [PACKAGE...]       more packages of Debian: python3-sklearn python3-seaborn ...
#
# Environment: DSEC (default bin/dsec), NAME of the template (default code-interpreter-v1), DSEC_URL and DSEC_API_KEY or the
# user's configuration; those of hack/debian-base.sh.
set -eu

cd "$(dirname "$0")/.."
dsec=${DSEC:-bin/dsec}
name=${NAME:-code-interpreter-v1}

base=$(hack/debian-base.sh git procps python3 python3-ipykernel python3-jupyter-client python3-matplotlib python3-pandas "$@")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM

# As clients expect it: they work as user, in its home.
mkdir -p "$tree/etc" "$tree/home/user" "$tree/opt/code-interpreter"
for f in passwd group; do
	tar -xOf "$base" "./etc/$f" >"$tree/etc/$f"
done
echo 'user:x:1000:1000::/home/user:/bin/bash' >>"$tree/etc/passwd"
echo 'user:x:1000:' >>"$tree/etc/group"
chmod 755 "$tree" "$tree/etc" "$tree/home" "$tree/opt" "$tree/opt/code-interpreter"
chmod 644 "$tree/etc/passwd" "$tree/etc/group"
chown 1000:1000 "$tree/home/user"
cp cluster/e2b/interpreter/server.py cluster/e2b/interpreter/show.py "$tree/opt/code-interpreter/"
chmod 644 "$tree"/opt/code-interpreter/*
tar -C "$tree" -cf "$tree.tar" .
trap 'rm -rf "$tree" "$tree.tar"' EXIT

"$dsec" layer import --base "$name" "$base"
"$dsec" layer import --toolkit "$name" --on-start 'exec python3 /opt/code-interpreter/server.py start' --on-start-user user "$tree.tar"
"$dsec" env create "$name" --replace --base "$name" --toolkit "$name" --user user --workdir /home/user
