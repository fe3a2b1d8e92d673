#!/bin/bash
# soak.sh: what takes long. A bare Debian 12, thousands of seeds of the run engine, and random kill -9 over the demo.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
scripts/test-deps.sh
TARN_SEEDS="${SEEDS:-2000}" cargo test --release --locked -p tarn-engine --test run_seeds
scripts/soak-kill.sh "${KILLS:-200}" "${SEED:-1}"
