#!/bin/bash
# test-product.sh NAME [ARGUMENT...]: the tests of one product, with arguments for the test programs (`-- FILTER`). NAME is one of:
#   workflow    workflow files, engine, nodes, `tarn run`
#   site        the service under Slurm, its cluster tests included
#   tasks       tarnd's tasks and dataspaces
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
crates=() cli=() daemon=() tests=()
case $name in
    workflow)
        crates=(flow engine local allocation control journal)
        cli=(run bad_days data_outside restart partition encrypt multi_node scripts state)
        daemon=(node)
        tests=(allocation allocation_end python_package)
        ;;
    site)
        crates=(site slurm munge modes)
        daemon=(site)
        tests=(site site_controller slurm_spank)
        ;;
    tasks)
        crates=(tasks client)
        daemon=(tasks peers places)
        tests=(tasks tasks_far)
        ;;
    checkpoint)
        crates=(phx checkpoint ranks track objects libtarn python)
        cli=(ckpt ckpt_drain objects)
        daemon=(checkpoints objects)
        tests=(checkpoints)
        ;;
    direct)
        crates=(dsa ring partitions media)
        cli=(hdf5 block verbs)
        daemon=(partitions)
        ;;
    simulator)
        crates=(sim report)
        cli=(sim sim_replay report)
        ;;
    transfer)
        crates=(movers s3 fabric seal keyring)
        cli=(object_store encrypt)
        daemon=(object_stores)
        ;;
    foundation)
        crates=(base ports proto sys power)
        ;;
    *)
        sed -n '2,10s/^# //p' "$0" >&2
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
    cargo test --locked -p "tarn-$package" "${targets[@]}" "$@"
}

# What the tests of other packages start is built beside them.
cargo build --locked --workspace --bins --examples --quiet
for crate in "${crates[@]}"; do run "$crate" "$@"; done
[ ${#cli[@]} -eq 0 ] || run cli "${cli[@]}" "$@"
[ ${#daemon[@]} -eq 0 ] || run daemon "${daemon[@]}" "$@"
[ ${#tests[@]} -eq 0 ] || run tests "${tests[@]}" "$@"
