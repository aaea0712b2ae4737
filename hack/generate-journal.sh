#!/usr/bin/env bash
# Generates edge/record/journal.pb.go. The journal's format imports the API's but is no part of it, and buf wants all
# files of a module below one root: it gets a copy.
#
#   hack/generate-journal.sh BUF
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/dsec/v1"
cp "$root"/api/dsec/v1/*.proto "$tmp/dsec/v1/"
cp "$root/edge/record/journal.proto" "$tmp/"
printf 'version: v2\nmodules:\n  - path: .\n' >"$tmp/buf.yaml"
printf 'version: v2\nplugins:\n  - local: ["go", "tool", "protoc-gen-go"]\n    out: %s\n    opt: paths=source_relative\n' "$root/edge/record" >"$tmp/buf.gen.yaml"
cd "$root" && "$1" generate "$tmp" --template "$tmp/buf.gen.yaml" --path "$tmp/journal.proto"
