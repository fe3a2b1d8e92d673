#!/bin/bash
# bench.sh [FOLDER]: every benchmark of this machine; the results as JSON in FOLDER (default demo/bench), for people on stderr.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
tarn_built release
results=${1:-demo/bench}
mkdir -p "$results"
"$tarn" bench stage --json > "$results/stage.json"
"$tarn" bench crypt --json > "$results/crypt.json"
"$tarn" bench workflow --external-rate "200 MB/s" --json > "$results/workflow.json"
"$tarn" bench workflow --case papers --external-rate "200 MB/s" --pairs 36 --json > "$results/workflow-36-pairs.json"
bench/montage.py "$tarn" --dir "$results" > "$results/montage.json"
bench/calibrate.py "$tarn" --dir "$results" > "$results/calibrate.json"
ls "$results" >&2
