#!/bin/bash
# test-product.sh NAME [ARGUMENT...]: the tests of one product, with arguments for the test programs (`-- FILTER`). NAME is one of:
#   workflow    workflow files, engine, nodes, `tarn run`
#   services    the service under Slurm, its cluster tests included; tarnd's tasks and dataspaces
#   checkpoint  checkpoints and objects, with their bindings
#   direct      queue pairs, partitions, HDF5, block devices, verbs
#   simulator   simulated machines and their reports
#   transfer    movers, object stores, the data plane, encryption
#   foundation  types, ports, messages, system calls
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

name=${1:-}
[ $# -gt 0 ] && shift
tarn=() tarnd=() tests=()
case $name in
    workflow)
        tarn=(run bad_days data_outside restart partition encrypt multi_node scripts state)
        tarnd=(node)
        tests=(allocation allocation_end)
        ;;
    services)
        tarnd=(site tasks peers places)
        tests=(site site_controller slurm_spank tasks tasks_far)
        ;;
    checkpoint)
        tarn=(ckpt ckpt_drain objects)
        tarnd=(checkpoints objects)
        tests=(checkpoints)
        ;;
    direct)
        tarn=(hdf5 block verbs)
        tarnd=(partitions)
        ;;
    simulator) tarn=(sim sim_replay report) ;;
    transfer)
        tarn=(object_store encrypt)
        tarnd=(object_stores)
        ;;
    foundation) ;;
    *)
        sed -n '2,9s/^# //p' "$0" >&2
        exit 2
        ;;
esac

# run PACKAGE TARGET...: these test programs of a package; all of them where none is named.
run() {
    local package=$1 targets=()
    shift
    for target in "$@"; do
        [ "$target" = -- ] && break
        targets+=(--test "$target")
        shift
    done
    cargo test --locked -p "$package" "${targets[@]}" "$@"
}

# Programs that the tests of other packages start are built beside them.
cargo build --locked --workspace --bins --examples --quiet
for manifest in "$name"/*/Cargo.toml; do run "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)" "$@"; done
[ ${#tarn[@]} -eq 0 ] || run tarn "${tarn[@]}" "$@"
[ ${#tarnd[@]} -eq 0 ] || run tarnd "${tarnd[@]}" "$@"
[ ${#tests[@]} -eq 0 ] || run tarn-tests "${tests[@]}" "$@"
