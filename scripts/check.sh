#!/bin/bash
# check.sh: what a contributor runs before each commit: format, lints, unit tests of every crate, style, layers, documents and links in comments. Needs
# nothing but cargo and a C compiler; below three minutes on two cores once it has been built.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
started=$SECONDS
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
cargo test --workspace --locked --quiet --lib --bins
cargo test --workspace --locked --quiet --test style --test layers --test documents --test glossary
RUSTDOCFLAGS='-D rustdoc::broken_intra_doc_links -A rustdoc::private_intra_doc_links' cargo doc --no-deps --document-private-items --workspace --locked --quiet
echo "check.sh: all passed in $((SECONDS - started)) s; \`make test\` runs the rest" >&2
