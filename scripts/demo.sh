#!/bin/bash
# demo.sh: the Montage example on four nodes of this machine. Leaves demo/mosaic.png and demo/report.html.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
echo "building tarn: some minutes the first time ..." >&2
cargo build --locked --profile demo -p tarn -p tarnd
tarn=$(realpath "$target/demo/tarn")

mkdir -p demo/montage
exec 9< demo
flock 9
cp examples/montage/*.sh examples/montage/workflow.toml demo/montage/
[ -e demo/montage/raw ] || {
    echo "making the tiles ..." >&2
    rm -rf demo/montage/raw.part
    examples/montage/make_tiles.py demo/montage/raw.part
    mv demo/montage/raw.part demo/montage/raw
}
"$tarn" run demo/montage/workflow.toml --nodes 4 --report demo/report.html 9<&-
cp demo/montage/results/picture/mosaic.png demo/mosaic.png
echo "look at demo/mosaic.png and demo/report.html" >&2
