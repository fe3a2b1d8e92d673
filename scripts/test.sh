#!/bin/bash
# test.sh: every check that needs no more than minutes. Goes on after a failure, and ends with a count.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit 1
# shellcheck source=scripts/common.sh
. scripts/common.sh

passed=0 failed=0 ignored=0 failures=() skipped=()
log=$(mktemp "${TMPDIR:-/tmp}/tarn-test.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT

# check NAME COMMAND...: one check.
check() {
    local name=$1
    shift
    echo "== $name" >&2
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

# Runs cargo test, adds up its counts, and keeps what tests say that could not be done here: such a test counts as passed.
cargo_tests() {
    cargo test --workspace --locked --no-fail-fast -- --show-output 2>&1 | tee "$log"
    local status=$? ok bad left
    read -r ok bad left < <(awk '/^test result:/ { ok += $4; bad += $6; left += $8 } END { print ok + 0, bad + 0, left + 0 }' "$log")
    passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + left))
    mapfile -t skipped < <(grep '^SKIPPED: ' "$log" | sort | uniq -c)
    return "$status"
}

shell_scripts() {
    git ls-files -z -- '*.sh' .ci/run tests/cluster/slurm-cluster | xargs -0 shellcheck -x
}

python_scripts() {
    git ls-files -z -- '*.py' | xargs -0 /usr/bin/python3 -m pyflakes
}

c_shim() {
    git ls-files -z -- 'crates/fabric/shim/*.[ch]' | xargs -0 clang-format --dry-run --Werror
}

started=$SECONDS
check "format" cargo fmt --all --check
check "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
check "cargo test" cargo_tests
check "tests as an unprivileged user" scripts/test-unprivileged.sh
check "shell scripts" shell_scripts
check "python scripts" python_scripts
check "C shim" c_shim
check "montage: tarn gives what the plain shell gives" scripts/montage-check.sh

for line in "${skipped[@]}"; do echo "NOT TESTED HERE: $line" >&2; done
for name in "${failures[@]}"; do echo "FAILED: $name" >&2; done
result=ok
[ "$failed" -eq 0 ] || result=FAILED
echo "test result: $result. $passed passed; $failed failed; $ignored ignored; 0 measured; 0 filtered out; finished in $((SECONDS - started)).00s"
[ "$failed" -eq 0 ]
