#!/bin/bash
# criu.sh FOLDER: FOLDER/criu, a CRIU that works on this machine, for the tests of `restart = "image"`: the machine's own if `criu
# check` is content with it, else that of Debian 14 with the libraries it needs (CRIU 3.17 of Debian 12 does not know the vDSO of
# kernels since 6.13 or so, and no CRIU before 4.2 the TCP sockets of kernels since 6.16). A working one that is there stays. The
# packages, some 20 MB, come from where this machine gets its own, checked by the distribution's keys; nothing is installed.
set -euo pipefail
mkdir -p "$1"
cd "$1"
exec 9> .lock
flock 9
# Only root's check covers root's images; others find out when they take one.
content() {
    "$1" --version 2> /dev/null | awk '/^Version:/ { print "4.2\n" $2 }' | grep . | sort -V -C || return 1
    [ "$(id -u)" -ne 0 ] || "$1" check > /dev/null 2>&1
}
[ ! -x criu ] || ! content ./criu || exit 0

PATH=$PATH:/usr/local/sbin:/usr/sbin
if own=$(command -v criu) && content "$own"; then
    printf '#!/bin/sh\nexec %q "$@"\n' "$own" > .criu
    chmod +x .criu
    mv .criu criu
    exit 0
fi

suite=forky
keys=/usr/share/keyrings/debian-archive-keyring.gpg
# The mirror of this machine's Debian.
# shellcheck disable=SC2016  # apt-get's own
mirror=$(apt-get indextargets --format '$(SITE) $(COMPONENT) $(LABEL) $(REPO_URI) $(SUITE)' 'Created-By: Packages' 2> /dev/null \
    | awk '$2 == "main" && $NF !~ /-(updates|security|backports)$/ { print $(NF - 1); exit }')
[ -n "$mirror" ] || { echo "criu.sh: this machine's apt names no mirror of Debian" >&2; exit 1; }
rm -rf .apt .root
mkdir -p .apt/etc/preferences.d .apt/state/lists/partial .apt/cache/archives/partial .root
touch .apt/status
echo "deb [signed-by=$keys] $mirror $suite main" > .apt/etc/sources.list
here=$PWD/.apt
options=(-q -q
    -o "Dir::Etc=$here/etc" -o "Dir::Etc::SourceList=$here/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State=$here/state" -o "Dir::State::status=$here/status" -o "Dir::Cache=$here/cache"
    -o APT::Install-Recommends=false -o APT::Sandbox::User=root -o Debug::NoLocking=true)
# How this machine reaches it (a proxy) is in its own configuration, which is read before these.
apt-get "${options[@]}" update >&2
apt-get "${options[@]}" -y --download-only install criu >&2
for package in .apt/cache/archives/*.deb; do
    dpkg-deb -x "$package" .root
done
lib=$PWD/.root/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH 2> /dev/null || gcc -print-multiarch)
loader=$(echo "$lib"/ld-linux-*.so.*)
printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$loader" "$lib" "$PWD/.root/usr/sbin/criu" > .criu
chmod +x .criu
content ./.criu || { echo "criu.sh: CRIU of $suite does not work here either: $(./.criu check 2>&1 | tail -n 1)" >&2; exit 1; }
rm -rf .apt
mv .criu criu
