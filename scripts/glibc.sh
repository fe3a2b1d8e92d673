#!/bin/bash
# glibc.sh VERSION FILE...: fails where a program or library needs a newer glibc than VERSION, by the versions of the symbols that it
# asks for; says of each what it needs.
set -euo pipefail
[ $# -ge 2 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
most=$1
shift
status=0
for file in "$@"; do
    symbols=$(objdump -T "$file") || exit 1
    newest=$(grep -o 'GLIBC_[0-9.]*[0-9]' <<< "$symbols" | sed 's/GLIBC_//' | sort -Vu | tail -n 1) || true
    [ -n "$newest" ] || {
        echo "glibc.sh: $file asks for no symbol of glibc: it is no dynamic program or library" >&2
        exit 1
    }
    libraries=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    echo "$file: glibc $newest; ${libraries% }"
    if [ "$(printf '%s\n' "$newest" "$most" | sort -V | tail -n 1)" != "$most" ]; then
        echo "glibc.sh: $file needs glibc $newest, more than $most:" >&2
        grep -F "GLIBC_$newest" <<< "$symbols" >&2
        status=1
    fi
done
exit $status
