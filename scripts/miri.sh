#!/bin/bash
# miri.sh: state shared without locks, and the rings' and queues' memory, under Miri; needs a nightly toolchain with it:
# rustup toolchain install nightly --component miri,rust-src
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
cargo +nightly miri --version > /dev/null 2>&1 || {
    echo "miri: SKIPPED: no nightly toolchain with Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 0
}
# A folder of its own: another compiler's. Tests leak what lives as long as they do.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/miri PROPTEST_CASES=${CASES:-4}
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks"
cargo +nightly miri test --locked -p tarn-ring -p tarn-queue
for seed in 1 2 3 4 5 6 7 8; do
    MIRIFLAGS="$MIRIFLAGS -Zmiri-seed=$seed" cargo +nightly miri test --locked -p tarn-media --lib threads_
done
