#!/bin/bash
# soak.sh: the tests that take long. A bare Debian 12, all of `make test` on Debian 13, Miri where it is installed, a Debian 11
# for what `make portable` makes, thousands of seeds of the run engine, arenas of checkpoints by the hundred thousand, 1,000
# random kill -9 of ranks, and of writers of HDF5, each call that changes a file failed or killed, a tree of thousands of objects
# in a store, 10,000 tasks between two nodes, an array of 1,000 jobs, and random kill -9 over the demo.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
scripts/test-deps.sh
# Status 3: such a root cannot be made here, which was said.
scripts/suite.sh trixie test || [ $? -eq 3 ]
scripts/miri.sh
scripts/test-portable.sh
TARN_SEEDS="${SEEDS:-2000}" cargo test --release --locked -p tarn-engine --test run_seeds
TARN_ARENAS="${ARENAS:-500000}" cargo test --release --locked -p tarn-checkpoint-core --test opener
TARN_SEALS="${SEALS:-500000}" cargo test --release --locked -p tarn-seal --test sealed
cargo build --release --locked -p tarn -p tarn-bench -p tarnd -p tarn-libtarn
TARN_KILLS="${RANK_KILLS:-1000}" cargo test --release --locked -p tarn-libtarn --test phx killed
TARN_KILLS="${HDF5_KILLS:-1000}" cargo test --release --locked -p tarn --test hdf5 outlives -- --nocapture
TARN_INJECT="${INJECT:-all}" cargo test --release --locked -p tarn --test inject --test inject_libtarn -- --nocapture
TARN_MANY="${OBJECTS:-2500}" cargo test --release --locked -p tarn-s3 --test store pages
TARN_MANY=10000 cargo test --release --locked -p tarn-tests --test tasks_far thousands
TARN_MANY=1000 cargo test --release --locked -p tarn-tests --test site array
scripts/soak-kill.sh "${KILLS:-200}" "${SEED:-1}"
