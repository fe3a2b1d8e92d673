#!/bin/bash
# soak.sh: what takes long. A bare Debian 12, and random kill -9 over the demo.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
scripts/test-deps.sh
scripts/soak-kill.sh "${KILLS:-200}" "${SEED:-1}"
