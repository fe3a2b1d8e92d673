# shellcheck shell=bash
# What the other scripts share; source it from the repository's root.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
target=${CARGO_TARGET_DIR:-target}

# tarn_built PROFILE: builds tarn, with tarnd, libtarn and (where libfabric-dev is installed) libtarnfabric and (where nbdkit-plugin-dev is) the
# plug-in of nbdkit beside it, and sets `tarn` to the binary's absolute path.
tarn_built() {
    local options=()
    [ "$1" = debug ] || options=(--release)
    cargo build --quiet --locked -p tarn-cli -p tarn-daemon -p tarn-libtarn "${options[@]}"
    scripts/shim.sh "$target/$1" || [ $? -eq 3 ]
    scripts/hdf5.sh "$target/$1"
    scripts/nbdkit.sh "$target/$1" || [ $? -eq 3 ]
    # shellcheck disable=SC2034  # used by those who source this
    tarn=$(realpath "$target/$1/tarn")
}

# sums FOLDER: the hashes of a mosaic and its picture, without their paths.
sums() {
    sha256sum "$1/mosaic/mosaic.fits" "$1/picture/mosaic.png" | cut -d ' ' -f 1
}
