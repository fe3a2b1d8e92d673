#!/bin/bash
# suite.sh SUITE prepare [GROUP]: a root of this Debian suite (trixie, sid), with the packages of `deps.sh GROUP` (test), from the
#     mirror that this machine's own packages come from. It is made once, in ${TARN_SUITES:-${XDG_CACHE_HOME:-$HOME/.cache}/tarn/suites}.
# suite.sh SUITE run COMMAND...: the command in the checkout, with that root as the root of a private mount namespace. The checkout, cargo
#     and rustup are where they are here; /tmp and /run are its own. The programs are those that this machine has built.
# suite.sh SUITE test: all of `make test` there, with a target folder of its own (target/SUITE).
# Needs root. Status 3: such a root cannot be made on this machine, and why.
set -euo pipefail
script=$(realpath "$0")
checkout=$(dirname "$(dirname "$script")")

usage() {
    sed -n '2,/^set/s/^# //p' "$script" >&2
    exit 2
}

unable() {
    echo "suite.sh: no Debian $suite here: $1" >&2
    exit 3
}

[[ $# -ge 2 && $1 =~ ^[a-z]+$ ]] || usage
suite=$1 verb=$2
shift 2
suites=${TARN_SUITES:-${XDG_CACHE_HOME:-$HOME/.cache}/tarn/suites}
root=$suites/$suite
target=$(realpath -m "${CARGO_TARGET_DIR:-$checkout/target}")

# The root with only the packages that debootstrap gives; a second caller waits for the first.
make_root() {
    [ "$(id -u)" -eq 0 ] || unable "a root of its own needs root"
    unshare --mount true 2> /dev/null || unable "this machine refuses mount namespaces"
    mkdir -p "$suites"
    exec {lock}> "$suites/$suite.lock"
    flock "$lock"
    if [ ! -d "$root" ]; then
        command -v debootstrap > /dev/null || unable "debootstrap is not installed: scripts/deps.sh test installs it"
        [ -e "/usr/share/debootstrap/scripts/$suite" ] || unable "debootstrap knows no suite of this name"
        local mirror new=$suites/.$suite
        # shellcheck disable=SC2016  # apt-get's own
        mirror=$(apt-get indextargets --format '$(COMPONENT) $(LABEL) $(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2> /dev/null |
            awk '$1 == "main" && $2 == "Debian" && $NF !~ /-/ { print $(NF - 1); exit }')
        [ -n "$mirror" ] || unable "apt's sources name no mirror of Debian"
        echo "suite.sh: making a root of Debian $suite in $root" >&2
        rm -rf --one-file-system "$new"
        # Mounts that debootstrap makes are gone with its namespace.
        unshare --mount --propagation private debootstrap --variant=minbase --include=ca-certificates,git "$suite" "$new" "$mirror" \
            > "$suites/$suite.log" 2>&1 {lock}>&- || unable "debootstrap failed: $(tail -n 1 "$suites/$suite.log")"
        echo "deb $mirror $suite main" > "$new/etc/apt/sources.list"
        # Nothing starts by itself, and data that can be made again is not synced.
        printf '#!/bin/sh\nexit 101\n' > "$new/usr/sbin/policy-rc.d"
        chmod 755 "$new/usr/sbin/policy-rc.d"
        echo force-unsafe-io > "$new/etc/dpkg/dpkg.cfg.d/suite"
        mv "$new" "$root"
    fi
    as_here
    exec {lock}>&-
}

# copy FILE: as this machine has it now, if it has it.
copy() {
    [ -e "$1" ] || return 0
    mkdir -p "$root${1%/*}"
    cmp -s "$1" "$root$1" || cp "$1" "$root$1"
}

# This machine's names, and its ways to others; its mirror may lag behind, and its own apt then gets that setting too.
as_here() {
    local file
    for file in /etc/{hostname,hosts,resolv.conf} /etc/ssl/certs/ca-certificates.crt; do copy "$file"; done
    { grep -lisE 'proxy|check-valid-until' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true; } | while read -r file; do copy "$file"; done
}

# enter TARGET COMMAND...: in a new mount namespace; TARGET is the target folder there.
enter() {
    local own_target=$1 tmp status=0
    shift
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/suite.XXXXXX")
    chmod 1777 "$tmp"
    # shellcheck disable=SC2064  # this folder
    trap "rm -rf --one-file-system '$tmp'" EXIT
    mkdir -p "$own_target"
    unshare --mount --propagation private "$script" "$suite" inside "$root" "$tmp" "$own_target" "$@" || status=$?
    return "$status"
}

# show FOLDER [AT]: the folder is seen at this place in the root.
show() {
    local at=$root${2:-$1}
    mkdir -p "$at"
    mount --rbind "$1" "$at"
}

# inside ROOT TMP TARGET COMMAND...
inside() {
    local home tmp=$2 own_target=$3
    root=$1
    shift 3
    mount --bind "$root" "$root"
    mount -t tmpfs -o mode=755,size=1g run "$root/run"
    for home in /proc /sys /dev; do show "$home"; done
    show "$tmp" /tmp
    for home in "${CARGO_HOME:-$HOME/.cargo}" "${RUSTUP_HOME:-$HOME/.rustup}"; do
        [ ! -d "$home" ] || show "$(realpath "$home")"
    done
    show "$checkout"
    show "$own_target" "$target"
    mkdir -p "$root$HOME" "$root/run/lock" "$root/run/.old"
    cd "$root"
    pivot_root . run/.old
    cd "$checkout"
    umount -l /run/.old
    rmdir /run/.old
    unset TMPDIR LANG LANGUAGE LC_CTYPE
    export LC_ALL=C.UTF-8 TARN_SUITE=$suite
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${CARGO_HOME:-$HOME/.cargo}/bin
    exec "$@"
}

case $verb in
    prepare)
        make_root
        # Its own target folder: programs that `deps.sh test` makes there are made for it.
        enter "$target/$suite" scripts/deps.sh "${1:-test}"
        ;;
    run)
        [ $# -gt 0 ] || usage
        make_root
        enter "$target" "$@"
        ;;
    test)
        make_root
        enter "$target/$suite" sh -c 'scripts/deps.sh test && exec scripts/test.sh'
        ;;
    inside) inside "$@" ;;
    *) usage ;;
esac
