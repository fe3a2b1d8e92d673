#!/bin/bash
# test.sh: every check that needs no more than minutes. Goes on after a failure, and ends with a count.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit 1
# shellcheck source=scripts/common.sh
. scripts/common.sh

passed=0 failed=0 ignored=0 failures=() skipped=()
work=$(mktemp -d "${TMPDIR:-/tmp}/tarn-test.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

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

# The test programs of the workspace, one on a line: its package's folder, a tab, the program.
programs() {
    cargo test --workspace --locked --no-run --message-format=json-render-diagnostics | /usr/bin/python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("profile", {}).get("test"):
        print(os.path.dirname(message["manifest_path"]), message["executable"], sep="\t")'
}

# next_of LIST...: the first line of the first of these files that has one, which goes from it.
next_of() {
    local list line
    (
        flock 9
        for list in "$@"; do
            if IFS= read -r line < "$work/$list"; then
                sed -i 1d "$work/$list"
                echo "$line"
                return
            fi
        done
        return 1
    ) 9>> "$work/lock"
}

# lane NAME LIST...: runs the test programs in these files one after the other, as cargo does. All that a program says is shown when
# it fails, and once more at the very end; else its count.
lane() {
    local nice folder program status=0 name=$1
    shift
    while IFS=$'\t' read -r nice folder program < <(next_of "$@"); do
        echo "     Running $program" > "$work/$name.one"
        if (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec nice -n "$nice" "$program" --show-output) < /dev/null >> "$work/$name.one" 2>&1; then
            echo "${program##*/}: $(grep '^test result:' "$work/$name.one")"
        else
            status=1
            cat "$work/$name.one"
            { echo && echo "     Running $program" && sed -n '/^failures:$/,$p' "$work/$name.one" && tail -n 5 "$work/$name.one"; } >> "$work/failed"
        fi
        cat "$work/$name.one" >> "$work/$name.log"
    done
    return "$status"
}

# Runs all tests, adds up their counts, and keeps what tests say that could not be done here: such a test counts as passed. Those of
# clusters wait most of the time: two of them run at once, the longest first, beside one of the others, which makes way for them.
cargo_tests() {
    local status=0 ok bad left
    programs > "$work/programs" || return 1
    for long in 'site-' 'allocation-' ''; do
        grep "^$PWD/tests"$'\t' "$work/programs" | grep "/${long}[^/]*\$" | sed 's/^/0\t/' >> "$work/all-clusters"
    done
    awk '!seen[$0]++' "$work/all-clusters" > "$work/clusters"
    grep -v "^$PWD/tests"$'\t' "$work/programs" | sed 's/^/5\t/' > "$work/others"
    [ -s "$work/clusters" ] && [ -s "$work/others" ] || return 1
    export -f lane next_of
    export work
    # By xargs, as what bash itself starts beside others takes no interrupt.
    printf '%s\n' "one clusters others" "two clusters others" "three others clusters" | xargs -P 3 -I % bash -c 'lane %' || status=1
    cargo test --workspace --locked --no-fail-fast --doc 2>&1 | tee "$work/doc.log" || status=1
    cat "$work"/*.log > "$work/log"
    read -r ok bad left < <(awk '/^test result:/ { ok += $4; bad += $6; left += $8 } END { print ok + 0, bad + 0, left + 0 }' "$work/log")
    passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + left))
    mapfile -t skipped < <(grep '^SKIPPED: ' "$work/log" | sort | uniq -c)
    return "$status"
}

shell_scripts() {
    git ls-files -z -- '*.sh' 'examples/*.sbatch' .ci/run tests/cluster/slurm-cluster plugins/slurm/tarn-mode-helper crates/modes/tests/played | xargs -0 shellcheck -x
}

python_scripts() {
    git ls-files -z -- '*.py' | xargs -0 /usr/bin/python3 -m pyflakes
}

# Their rule for verdicts, what they need, what they read of other programs' output, and their pages.
experiments() {
    /usr/bin/python3 -m unittest discover -s bench/experiments -p 'test_*.py'
}

c_sources() {
    git ls-files -z -- 'crates/fabric/shim/*.[ch]' 'crates/local/brick/*.[ch]' 'bench/experiments/*.[ch]' 'tests/tests/*.[ch]' 'crates/cli/tests/inject/*.[ch]' 'plugins/*.[ch]' | xargs -0 clang-format --dry-run --Werror
}

started=$SECONDS
check "format" cargo fmt --all --check
check "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
check "cargo test" cargo_tests
check "tests as an unprivileged user" scripts/test-unprivileged.sh
check "shell scripts" shell_scripts
check "python scripts" python_scripts
check "experiments and their pages" experiments
check "C shims and plug-ins" c_sources
check "montage: tarn gives what the plain shell gives" scripts/montage-check.sh

[ ! -s "$work/failed" ] || tail -n 300 "$work/failed"
for line in "${skipped[@]}"; do echo "NOT TESTED HERE: $line" >&2; done
for name in "${failures[@]}"; do echo "FAILED: $name" >&2; done
result=ok
[ "$failed" -eq 0 ] || result=FAILED
echo "test result: $result. $passed passed; $failed failed; $ignored ignored; 0 measured; 0 filtered out; finished in $((SECONDS - started)).00s"
[ "$failed" -eq 0 ]
