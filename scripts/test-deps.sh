#!/bin/bash
# test-deps.sh: deps.sh makes a bare Debian 12 (a chroot, from this machine's own mirror) able to run the demo's programs.
# Needs root, debootstrap and some 600 MB in TMPDIR.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
if [ "${1:-}" != inside ]; then
    [ "$(id -u)" -eq 0 ] || { echo "test-deps: SKIPPED: a chroot needs root" >&2; exit 0; }
    work=$(mktemp -d "${TMPDIR:-/tmp}/test-deps.XXXXXX")
    trap 'rm -rf --one-file-system "$work"' EXIT
    # Mounts made inside are gone with the namespace.
    unshare --mount --pid --fork --kill-child "$0" inside "$work"
    echo "test-deps: ok"
    exit 0
fi
root=$2/root

sources() {
    # shellcheck disable=SC2016  # apt's own format
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u | awk '$2 ~ /^bookworm/'
}
mirror=$(sources | awk '$2 == "bookworm" { print $1; exit }')
[ -n "$mirror" ] || { echo "test-deps: SKIPPED: this machine's apt sources name no mirror of Debian 12" >&2; exit 0; }

debootstrap --variant=minbase bookworm "$root" "$mirror" > "$2/log" 2>&1 || { tail "$2/log" >&2; exit 1; }
sources | sed 's/.*/deb & main/' > "$root/etc/apt/sources.list"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
{ grep -lis proxy /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true; } | xargs -r cp -t "$root/etc/apt/apt.conf.d"
mount -t proc proc "$root/proc"
cp -r "$here" "$here/../examples" "$root/root/"
inside() {
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Everything but Rust, which it does not install; it only prints how to get it.
if inside /root/scripts/deps.sh demo > "$2/log" 2>&1; then
    echo "test-deps: deps.sh does not miss cargo" >&2
    exit 1
fi
grep -q https://rustup.rs "$2/log" || { tail -n 30 "$2/log" >&2; exit 1; }
# A second time, with a cargo, there is nothing to do or to say.
inside sh -c 'mkdir -p /root/.cargo/bin && ln -s /bin/true /root/.cargo/bin/cargo'
again=$(inside /root/scripts/deps.sh demo 2>&1)
[ -z "$again" ] || { echo "test-deps: deps.sh is not quiet the second time: $again" >&2; exit 1; }

inside /usr/bin/python3 -c 'import astropy, numpy'
inside cc --version > /dev/null
inside /root/examples/montage/make_tiles.py --grid 2 --size 100 /tmp/raw
inside /root/examples/montage/plain.sh /tmp/raw /tmp/work 1
[ -s "$root/tmp/work/picture/mosaic.png" ]
