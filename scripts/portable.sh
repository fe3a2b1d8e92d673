#!/bin/bash
# portable.sh [MACHINE]: programs and libraries for any Linux with glibc 2.27 or later on MACHINE (this one's; x86_64, aarch64), in
# target/MACHINE-unknown-linux-gnu/release, and target/tarn-VERSION-MACHINE.tar.gz with what `make install` installs, where this
# machine can run them. Zig, from PyPI, has the symbols of every glibc; the first time needs the network.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# RHEL 8 and Debian 10 have 2.28. Of 2.27 there are userlands to be had that it can be tried in (test-portable.sh).
glibc=2.27
machine=${1:-$(uname -m)}
triple=$machine-unknown-linux-gnu

tools=$(realpath -m "$target/portable-tools")
if [ ! -e "$tools/ready" ]; then
    /usr/bin/python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.0
    touch "$tools/ready"
fi
PATH=$tools/bin:$PATH
command -v rustup > /dev/null && rustup --quiet target add "$triple"

cargo zigbuild --quiet --locked --release -p tarn -p tarn-bench -p tarnd -p tarn-libtarn --target "$triple.$glibc"
built=$target/$triple/release
# The plug-in for HDF5 needs libtarn only; that for nbdkit also nbdkit's header, and the RDMA device libibverbs', which ask nothing of a system. libtarnfabric.so is for
# the libfabric of one system, and is made there (shim.sh).
export CC="python3 -m ziglang cc -target $machine-linux-gnu.$glibc"
scripts/hdf5.sh "$built"
scripts/brick.sh "$built"
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
cp /usr/include/nbdkit-*.h "$headers" 2> /dev/null || true
cp -r /usr/include/infiniband "$headers" 2> /dev/null || true
CC="$CC -I $headers" scripts/nbdkit.sh "$built" || [ $? -eq 3 ]
CC="$CC -I $headers" scripts/verbs.sh "$built" || [ $? -eq 3 ]

mapfile -t files < <(find "$built" -maxdepth 1 \( -name tarn -o -name tarnd -o -name '*.so' \) && find "$built/hdf5" "$built/verbs" -type f)
scripts/glibc.sh "$glibc" "${files[@]}"

[ "$machine" = "$(uname -m)" ] || exit 0
name=tarn-$(version)-$machine
DESTDIR=$headers scripts/install.sh "$built" "/$name"
find "$headers/$name/bin" "$headers/$name/lib" -type f ! -name '*.pc' ! -name '*.service' ! -name '*.a' -exec strip --strip-unneeded {} +
strip --strip-debug "$headers/$name/lib/libtarn.a"
scripts/third-party.py > "$headers/$name/share/doc/tarn/third-party"
# Wherever it is unpacked, pkg-config finds it; the units name the place where it is for all of a node.
# shellcheck disable=SC2016  # expanded by pkg-config
sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|' "$headers/$name/lib/pkgconfig/tarn.pc"
sed -i "s|/$name/bin|/opt/tarn/bin|" "$headers/$name"/lib/systemd/*/*.service
tar -C "$headers" --owner=0 --group=0 --sort=name --mtime="@$(epoch)" -czf "$target/$name.tar.gz" "$name"
echo "$target/$name.tar.gz"
