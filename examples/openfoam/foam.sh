# shellcheck shell=sh
# The environment that Debian's OpenFOAM needs. A site has a module for it.
export WM_PROJECT_DIR="${WM_PROJECT_DIR:-/usr/share/openfoam}"
