#!/bin/bash
# python.sh BUILT TO: lays the Python packages tarn and phx out in the folder TO, as pip would. The native library is libtarn_python.so
# of the folder BUILT (cargo build -p tarn-python); without it tarn.checkpoint and tarn.objects say what they lack.
set -euo pipefail
[ $# -eq 2 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
mkdir -p "$2"
built=$(realpath "$1") to=$(realpath "$2")
cd "$(dirname "$(realpath "$0")")/../bindings/python/python"
for package in tarn phx; do
    find "$package" -type f \( -name '*.py' -o -name '*.pyi' -o -name py.typed \) | while IFS= read -r file; do
        install -D -m 644 "$file" "$to/$file"
    done
done
[ ! -e "$built/libtarn_python.so" ] || install -m 644 "$built/libtarn_python.so" "$to/tarn/_native.abi3.so"
