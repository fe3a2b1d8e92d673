# shellcheck shell=sh
# What Debian's OpenFOAM needs in the environment. A site has a module for it.
export WM_PROJECT_DIR="${WM_PROJECT_DIR:-/usr/share/openfoam}"
