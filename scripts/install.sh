#!/bin/bash
# install.sh BUILT [PREFIX]: what was built in the folder BUILT (target/release), the headers, the sources of the bindings and the
# man pages, in PREFIX (/usr/local); below $DESTDIR, if that is set.
set -euo pipefail
[ $# -ge 1 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
built=$(realpath "$1") prefix=$(realpath -ms "${2:-/usr/local}")
cd "$(dirname "$(realpath "$0")")/.."
to=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

install -d "$to/bin" "$to/lib/pkgconfig" "$to/include" "$to/share/tarn" "$to/share/man/man3"
for program in tarn tarnd libtarnfabric.so; do # the last is looked for beside the programs
    [ ! -e "$built/$program" ] || install -t "$to/bin" "$built/$program"
done
plugin=nbdkit-tarn-plugin.so # `tarn block` looks for it there, and it for the library in the folder above
[ ! -e "$built/$plugin" ] || install -D -t "$to/lib/tarn" "$built/$plugin"
install -m 644 -t "$to/lib" "$built/libtarn.so" "$built/libtarn.a"
if [ -d "$built/hdf5" ]; then # a folder of its own, where `tarn h5 exec` looks for it
    install -d "$to/lib/tarn/hdf5"
    install -t "$to/lib/tarn/hdf5" "$built"/hdf5/{libh5fdtarn.so,bench}
fi
install -m 644 -t "$to/include" crates/libtarn/include/*.h
install -m 644 -t "$to/share/tarn" bindings/fortran/phx.f90 bindings/python/tarn.py
install -m 644 -t "$to/share/man/man3" docs/man/*.3
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" crates/libtarn/tarn.pc.in > "$to/lib/pkgconfig/tarn.pc"
