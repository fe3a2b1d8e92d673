#!/bin/bash
# mdbook.sh FOLDER: FOLDER/mdbook, which makes the book: the machine's own if it is an mdBook 0.5, else that of crates.io, which
# is compiled for it. An existing one stays.
set -euo pipefail
VERSION=0.5.4
mkdir -p "$1"
cd "$1"
exec 9> .lock
flock 9
[ ! -x mdbook ] || exit 0
own=$(command -v mdbook || true)
if [ -n "$own" ] && [[ $("$own" --version) == "mdbook v0.5."* ]]; then
    ln -sf "$own" mdbook
    exit 0
fi
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
# A folder of its own: files compiled before an interrupt are not compiled again, and nothing is kept beside the program.
CARGO_TARGET_DIR=$PWD/build cargo install --quiet --locked --no-default-features --features search --version "$VERSION" --root built mdbook >&2
mv built/bin/mdbook mdbook
rm -rf build built
