#!/bin/bash
# deps.sh build|demo|test|cluster|suites|openfoam|analysis|training|portable|book|soak|all: install what the group needs from Debian's own packages (12 or 13), and see that
# cargo is there. Does and says nothing when nothing is missing. TARN_DEPS=skip leaves everything to you.
set -euo pipefail

build=(build-essential)
demo=("${build[@]}" montage python3 python3-astropy python3-numpy)
# libfabric-dev makes libtarnfabric.so, clang-format checks its source, libhwloc15 knows processor sockets (strace sees who asks),
# chromium opens the report, mypy checks the types of the Python package, two check the scripts, jq reads a run's log as
# CONTRIBUTING.md shows, `links` is for what links libtarn (openmpi-bin runs the two-node example too), and the last are for the
# test cluster. hdf5-tools compares files, python3-venv is for the Pythons of PyPI at the end. openfoam (some 500 MB) is what the
# test of examples/openfoam runs, lammps that of examples/lammps. On systems that start services by themselves, Debian starts
# munged too; the cluster has its own. libslurm-dev makes the SPANK plug-in.
slurm=(iproute2 libfaketime libslurm-dev munge procps slurm-wlm slurm-wlm-basic-plugins util-linux-extra)
# A namespace over several nodes, and attributes of files in it. (No fuse3: mounting needs no program.)
shared=(attr glusterfs-client glusterfs-server)
# nbdkit-plugin-dev makes the plug-in for `tarn block`; the others of its group are its clients.
block=(e2fsprogs fio gnutls-bin libnbd-bin nbdkit nbdkit-plugin-dev qemu-utils)
# libibverbs-dev makes the RDMA device of `tarn verbs`; the others are programs that use it, binutils (objdump) reads what they ask for.
verbs=(binutils ibverbs-utils libibverbs-dev perftest)
# The object store of the tests: OpenStack Swift, which scripts/swift.py starts.
swift=(python3-swift swift-account swift-container swift-object swift-proxy)
# The programs that read completions and units; zsh and fish are optional for people, not for the tests.
shells=(fish systemd zsh)
# examples/analysis, and examples/training (some 600 MB).
analysis=("${build[@]}" python3 python3-dask python3-numpy python3-xarray python3-zarr)
training=("${build[@]}" python3 python3-numpy python3-torch)
links=(gfortran libmpich-dev libopenmpi-dev mandoc mpich openmpi-bin pkg-config)
# The packages that the tests of a Slurm cluster and its MPI programs need, and no more: `make test` runs them on Debian 13
# too (scripts/suite.sh).
cluster=("${build[@]}" python3 strace libfabric-dev "${links[@]}" "${shared[@]}" "${slurm[@]}")
# debootstrap makes that Debian 13.
test=("${demo[@]}" debootstrap chromium clang-format hdf5-tools jq lammps libfabric-dev libhwloc15 mypy openfoam pyflakes3 python3-venv shellcheck strace "${analysis[@]}" "${training[@]}" "${block[@]}" "${links[@]}" "${shared[@]}" "${shells[@]}" "${slurm[@]}" "${swift[@]}" "${verbs[@]}")
soak=("${test[@]}")
# mdBook comes from crates.io, for the tests too.
book=("${build[@]}" mandoc)
# Zig comes from PyPI.
portable=("${build[@]}" libibverbs-dev nbdkit-plugin-dev python3-venv)
# The example by itself; the slow external store of its benchmark is GlusterFS too.
openfoam=("${test[@]}")

case "${1:-}" in
    build) wanted=("${build[@]}") ;;
    demo) wanted=("${demo[@]}") ;;
    test) wanted=("${test[@]}") ;;
    cluster) wanted=("${cluster[@]}") ;;
    suites) wanted=(debootstrap) ;;
    openfoam) wanted=("${openfoam[@]}") ;;
    analysis) wanted=("${analysis[@]}") ;;
    training) wanted=("${training[@]}") ;;
    book) wanted=("${book[@]}") ;;
    portable) wanted=("${portable[@]}") ;;
    soak) wanted=("${soak[@]}") ;;
    all) wanted=("${soak[@]}" "${openfoam[@]}") ;;
    *)
        sed -n '2,3s/^# //p' "$0" >&2
        exit 2
        ;;
esac
[ "${TARN_DEPS:-}" != skip ] || exit 0

fail() {
    printf 'deps.sh: %s\n' "$@" >&2
    exit 1
}

command -v dpkg-query apt-get > /dev/null || fail "this is not Debian: install what these packages hold, then set TARN_DEPS=skip:" "${wanted[*]}"

missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) || status=
    [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null || fail "needs root to install: as root, run apt-get install --no-install-recommends ${missing[*]}"
        root=(sudo)
    fi
    echo "deps.sh: installing ${missing[*]}" >&2
    # The lock lets two run at once: apt-get update does not wait by itself.
    # shellcheck disable=SC2016  # expanded by the inner shell
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive flock /var/lib/dpkg sh -c '
        apt-get -q update && apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "$@"
    ' sh "${missing[@]}" >&2 || fail "apt-get could not install ${missing[*]}; its messages are above"
fi

if ! command -v cargo > /dev/null && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    fail "cargo is missing. Get Rust with rustup, then try again:" \
        "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh   (https://rustup.rs)"
fi

case "$1" in
    test | soak | openfoam | all)
        cd "$(dirname "$(realpath "$0")")/.."
        # Images of processes (`restart = "image"`).
        scripts/criu.sh "${CARGO_TARGET_DIR:-target}/criu" || fail "no CRIU that works here could be had; the messages are above"
        scripts/mdbook.sh "${CARGO_TARGET_DIR:-target}/mdbook" || fail "cargo could not install mdBook from crates.io; its messages are above"
        scripts/hdf5-python.sh "${CARGO_TARGET_DIR:-target}/hdf5-python" || fail "pip could not install h5py and netCDF4 from PyPI; its messages are above"
        scripts/mpi.sh "${CARGO_TARGET_DIR:-target}/mpi" || fail "pip could not install MPI from PyPI; its messages are above"
        ;;
esac
