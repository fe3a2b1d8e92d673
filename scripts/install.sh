#!/bin/bash
# install.sh BUILT [PREFIX]: what was built in the folder BUILT (target/release), its man pages and completions, headers, sources of
# bindings, units of systemd, documents and examples, in PREFIX (/usr/local); below $DESTDIR, if that is set. Packages are made of this.
set -euo pipefail
[ $# -ge 1 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
built=$(realpath "$1") prefix=$(realpath -ms "${2:-/usr/local}")
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
to=${DESTDIR:-}$prefix

install -d "$to/bin" "$to/lib/pkgconfig" "$to/include" "$to/share/tarn" "$to/share/man/man3" "$to/share/doc/tarn"
day=$(date -u -d "@$(epoch)" +%F)
for program in tarn tarn-bench tarnd; do
    [ -e "$built/$program" ] || continue
    install -t "$to/bin" "$built/$program"
    "$built/$program" __manual "$to/share" "$day"
done
for plugin in libtarnbrick.so libtarnfabric.so nbdkit-tarn-plugin.so spank_tarn.so; do # looked for there by the programs, and by the second the library in the folder above
    [ ! -e "$built/$plugin" ] || install -D -t "$to/lib/tarn" "$built/$plugin"
done
install -D -t "$to/lib/tarn" plugins/slurm/tarn-mode-helper
install -m 644 -t "$to/lib" "$built/libtarn.so" "$built/libtarn.a"
if [ -d "$built/hdf5" ]; then # a folder of its own, where `tarn h5 exec` looks for it
    install -d "$to/lib/tarn/hdf5"
    install -t "$to/lib/tarn/hdf5" "$built"/hdf5/{libh5fdtarn.so,bench}
fi
if [ -d "$built/verbs" ]; then # where `tarn verbs` looks for it
    install -d "$to/lib/tarn/verbs"
    install -t "$to/lib/tarn/verbs" "$built"/verbs/{libtarnverbs.so,libtarnverbs-storage.so,verbs-serve}
fi
install -m 644 -t "$to/include" bindings/c/include/*.h
install -m 644 -t "$to/share/tarn" bindings/fortran/phx.f90
scripts/python.sh "$built" "$to/share/tarn" # a folder for PYTHONPATH
install -m 644 -t "$to/share/man/man3" docs/man/*.3
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$(version)|" bindings/c/tarn.pc.in > "$to/lib/pkgconfig/tarn.pc"
for unit in system/tarnd{@,-site,-controller}.service user/tarnd.service; do
    install -d "$to/lib/systemd/${unit%/*}"
    sed "s|@PREFIX@|$prefix|" "packaging/systemd/${unit#*/}.in" > "$to/lib/systemd/$unit"
done
# As in the repository, so that links between documents lead somewhere.
tar -c --exclude=docs/man --exclude=.tarn --exclude=__pycache__ --exclude=research/experiments README.md CONTRIBUTING.md ARCHITECTURE.md LICENSE docs examples research |
    tar -x --no-same-owner -C "$to/share/doc/tarn"
