#!/bin/bash
# package.sh BUILT TO: Debian packages of what was built in the folder BUILT (target/release), in the folder TO: all that
# install.sh installs, divided. The maintainer is DEBFULLNAME <DEBEMAIL>, as for Debian's own tools.
set -euo pipefail
[ $# -eq 2 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
mkdir -p "$2"
built=$(realpath "$1") out=$(realpath "$2")
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
command -v dpkg-deb dpkg-shlibdeps > /dev/null || {
    echo "package.sh: needs dpkg-deb and dpkg-shlibdeps (Debian: dpkg-dev)" >&2
    exit 3
}
version=$(version) architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH # dpkg-deb gives files no later time: the same sources make the same package
work=$(mktemp -d "${TMPDIR:-/tmp}/tarn-package.XXXXXX")
trap 'rm -rf "$work"' EXIT

DESTDIR=$work/all scripts/install.sh "$built" /usr
all=$work/all/usr
# The folders in which Debian looks for them.
mkdir -p "$all/lib/python3/dist-packages" "$all/share/zsh"
mv "$all/share/zsh/site-functions" "$all/share/zsh/vendor-completions"
mv "$all/share/tarn/tarn" "$all/share/tarn/phx" "$all/lib/python3/dist-packages/"
find "$all/share/man" -type f -exec gzip -9n {} +
find "$all/bin" "$all/lib" -type f \( -path '*/bin/*' -o -name '*.so' -o -path '*/hdf5/bench' -o -name verbs-serve \) -exec strip --strip-unneeded -R .comment {} +
strip --strip-debug --enable-deterministic-archives "$all/lib/libtarn.a"
chmod -R u=rwX,go=rX "$all"
find "$all/lib" -name '*.so' -exec chmod 644 {} +

# The content of each package; `tarn` has the rest.
declare -A has=(
    [libtarn]="lib/libtarn.so"
    [libtarn-dev]="include lib/libtarn.a lib/pkgconfig share/tarn share/man/man3"
    [python3-tarn]="lib/python3"
    [tarn]="."
)
packages=(libtarn libtarn-dev python3-tarn tarn)
for package in "${packages[@]}"; do
    mkdir -p "$work/$package/DEBIAN" "$work/$package/usr"
    for path in ${has[$package]}; do
        (cd "$all" && cp --parents -al "$path" "$work/$package/usr" && { [ "$path" = . ] || rm -r "$path"; })
    done
done
find "$work"/*/usr -type d -empty -delete

# The layout of a source package, for dpkg's own tools.
mkdir "$work/debian"
cp packaging/debian/control "$work/debian/control"
sed -i "s/@MAINTAINER@/${DEBFULLNAME:-tarn} <${DEBEMAIL:-tarn@localhost}>/" "$work/debian/control"
cat > "$work/debian/changelog" << END
tarn ($version) unstable; urgency=medium

  * Made from the sources of $(date -u -d "@$SOURCE_DATE_EPOCH" +%F).

 -- ${DEBFULLNAME:-tarn} <${DEBEMAIL:-tarn@localhost}>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END

# needs PACKAGE OPTION...: which packages have the libraries that its programs need. libtarn.so has no version in its name: the
# packages that need it ask for libtarn by their own version.
needs() {
    (cd "$work" && dpkg-shlibdeps --ignore-missing-info -xlibtarn -l"$work/libtarn/usr/lib" -T"debian/$1.substvars" "${@:2}") \
        2> "$work/log" || { cat "$work/log" >&2 && exit 1; }
}
mapfile -t programs < <(find "$work/tarn/usr/bin" "$work/tarn/usr/lib" -type f \( -perm -u+x -o -name '*.so' \) ! -name libtarnfabric.so ! -name tarn-mode-helper)
# libfabric is needed by one plug-in only.
fabric=$work/tarn/usr/lib/tarn/libtarnfabric.so recommended=()
[ ! -e "$fabric" ] || recommended=(-dRecommends "$fabric")
needs libtarn -dDepends "$work/libtarn/usr/lib/libtarn.so"
needs tarn -dDepends "${programs[@]}" "${recommended[@]}"
native=$work/python3-tarn/usr/lib/python3/dist-packages/tarn/_native.abi3.so
[ ! -e "$native" ] || needs python3-tarn -dDepends "$native"

scripts/third-party.py | gzip -9n > "$work/third-party.gz"
for package in "${packages[@]}"; do
    root=$work/$package
    install -m 644 -D -t "$root/usr/share/doc/$package" packaging/debian/copyright "$work/third-party.gz"
    gzip -9n < "$work/debian/changelog" > "$root/usr/share/doc/$package/changelog.gz"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
    for script in postinst postrm; do
        file=packaging/debian/$package.$script
        [ ! -e "$file" ] || install -m 755 "$file" "$root/DEBIAN/$script"
    done
    (cd "$work" && touch "debian/$package.substvars" && dpkg-gencontrol -p"$package" -P"$package" -T"debian/$package.substvars" 2> log) || {
        cat "$work/log" >&2
        exit 1
    }
    dpkg-deb --root-owner-group --build "$root" "$out/${package}_${version}_$architecture.deb"
done
