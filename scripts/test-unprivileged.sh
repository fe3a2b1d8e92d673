#!/bin/bash
# test-unprivileged.sh: the tests of the crates that meet the file system, once more as the user `nobody`: root passes over
# permissions. Run by anybody else, the ordinary tests were that already.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
[ "$(id -u)" -eq 0 ] || exit 0
work=$(mktemp -d "${TMPDIR:-/tmp}/test-unprivileged.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp" "$work/bin"
chown 65534:65534 "$work/tmp"
chmod 755 "$work"

# The binaries are copied: the checkout may be where nobody can go.
cargo test --locked --no-run --message-format=json -p tarn-mover -p tarn-journal -p tarn-power 2> "$work/log" |
    /usr/bin/python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("profile", {}).get("test"):
        print(message["executable"])' > "$work/list" || { cat "$work/log" >&2; exit 1; }
[ -s "$work/list" ] || { echo "test-unprivileged: no tests were built" >&2; exit 1; }
cd "$work/tmp"
while read -r binary; do
    cp "$binary" "$work/bin/"
    env HOME="$work/tmp" TMPDIR="$work/tmp" setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
        "$work/bin/$(basename "$binary")" --quiet
done < "$work/list"
