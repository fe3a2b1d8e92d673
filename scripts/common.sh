# shellcheck shell=bash
# The common part of the other scripts; source it from the repository's root.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
target=${CARGO_TARGET_DIR:-target}

# tarn_built PROFILE: builds tarn, with tarnd, libtarn and (where libfabric-dev is installed) libtarnfabric and (where nbdkit-plugin-dev is) the
# plug-in of nbdkit and (where libslurm-dev is) that of Slurm and (where libibverbs-dev is) the RDMA device beside it, libtarnbrick, and sets `tarn` to the binary's absolute path.
tarn_built() {
    local options=()
    [ "$1" = debug ] || options=(--release)
    cargo build --quiet --locked -p tarn -p tarn-bench -p tarnd -p tarn-libtarn "${options[@]}"
    scripts/shim.sh "$target/$1" || [ $? -eq 3 ]
    scripts/nbdkit.sh "$target/$1" || [ $? -eq 3 ]
    scripts/spank.sh "$target/$1" || [ $? -eq 3 ]
    scripts/brick.sh "$target/$1"
    scripts/hdf5.sh "$target/$1"
    scripts/verbs.sh "$target/$1" || [ $? -eq 3 ]
    # shellcheck disable=SC2034  # used by those who source this
    tarn=$(realpath "$target/$1/tarn")
}

# sums FOLDER: the hashes of a mosaic and its picture, without their paths.
sums() {
    sha256sum "$1/mosaic/mosaic.fits" "$1/picture/mosaic.png" | cut -d ' ' -f 1
}

# The version of all that is built here.
version() {
    sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1
}

# The time of files made here, in seconds: SOURCE_DATE_EPOCH, or else when the sources were committed, or when they came
# here.
epoch() {
    echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}"
}
