#!/bin/bash
# test-portable.sh [USERLAND]: the build of portable.sh runs in an older userland, in a chroot: tarn, tarnd, libtarn and the
# plug-in for HDF5. USERLAND is the root folder of one; else it is made by debootstrap: Debian 11 (glibc 2.31) from this machine's
# own mirror, the oldest that Debian's mirrors still have. Needs root and some 600 MB in TMPDIR.
set -euo pipefail
here=$PWD
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
skip() {
    echo "test-portable: SKIPPED: $1" >&2
    exit 0
}
if [ "${1:-}" != inside ]; then
    given=${1:+$(cd "$here" && realpath "$1")}
    [ "$(id -u)" -eq 0 ] || skip "a chroot needs root"
    [ "$(uname -m)" = x86_64 ] || skip "the old userland is one for x86_64"
    work=$(mktemp -d "${TMPDIR:-/tmp}/test-portable.XXXXXX")
    trap 'rm -rf --one-file-system "$work"' EXIT
    # Mounts made inside are gone with the namespace.
    unshare --mount --pid --fork --kill-child "$PWD/scripts/test-portable.sh" inside "$work" "$given"
    exit 0
fi
work=$2 root=$2/root

archive=$(scripts/portable.sh | tail -n 1)
# A program of libtarn's own tests, for the same glibc.
zig=$target/portable-tools/bin/python3
"$zig" -m ziglang cc -target x86_64-linux-gnu.2.27 -I bindings/c/include -o "$work/phx" bindings/c/tests/phx.c \
    -L "$target/x86_64-unknown-linux-gnu/release" -ltarn -lpthread

if [ -n "$3" ]; then
    cp -a "$3" "$root"
else
    # shellcheck disable=SC2016  # apt's own format
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | awk '$2 == "bookworm" { print $1; exit }')
    [ -n "$mirror" ] || skip "this machine's apt sources name no mirror of Debian"
    debootstrap --variant=minbase bullseye "$root" "$mirror" > "$work/log" 2>&1 || { tail "$work/log" >&2; exit 1; }
fi
mkdir -p "$root/opt/tarn" "$root/data/books" "$root/tier"
tar -xzf "$archive" -C "$root/opt/tarn" --strip-components 1
cp "$work/phx" "$root/data/"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
inside() {
    chroot "$root" env -i HOME=/root PATH=/opt/tarn/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/tarn/lib sh -euc "cd /data; $1"
}

echo "test-portable: $(inside 'ldd --version' | head -n 1)"
[ "$(inside 'tarn --version')" = "tarn $(version)" ]
inside 'tarn doctor' > "$work/log"
cat > "$root/data/words.toml" << 'END'
name = "words"
[data.text]
source = "books"
[data.counts]
[data.total]
dest = "result"
[[step]]
name = "count"
foreach = "text/*.txt"
run = "wc -w < $TARN_text/$TARN_ITEM > $TARN_counts/$TARN_ITEM"
in = ["text/{item}"]
out = ["counts"]
[[step]]
name = "sum"
run = "cat $TARN_counts/*.txt | awk '{s+=$1} END {print s}' > $TARN_total/words"
in = ["counts"]
out = ["total"]
END
inside 'seq 1000 > books/one.txt; seq 2000 > books/two.txt; tarn run words.toml --nodes 4' > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
[ "$(cat "$root/data/result/words")" = 3000 ]
# shellcheck disable=SC2016  # expanded inside
inside 'mkdir /dev/shm/me; tarnd --log-level warn --socket /tmp/s --state /tmp/t --space fast=/dev/shm/me:64MiB -- sh -c "test -S \$TARN_SOCKET"'
[ "$(inside './phx /tier 2')" = "done at step 2" ]
[ "$(inside './phx /tier 4' | tail -n 1)" = "done at step 4" ]
# shellcheck disable=SC2016  # expanded inside
[ "$(inside 'tarn h5 exec --folder /dev/shm/me -- sh -c "echo \$HDF5_PLUGIN_PATH"')" = /opt/tarn/lib/tarn/hdf5 ]
echo "test-portable: ok"
