#!/bin/bash
# test.sh: every check that needs no more than minutes. Goes on after a failure, and ends with a count.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit 1
# shellcheck source=scripts/common.sh
. scripts/common.sh

passed=0 failed=0 ignored=0 failures=() skipped=()
# The longest test program (site) takes 25 minutes on two cores beside others: one that takes longer than this hangs, and is ended and named.
export program_minutes=40
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

# again FOLDER PROGRAM ON: the command that runs each test again that a program says has failed; the program whole, if it names none.
again() {
    local name=${2##*/} which test
    name=${name%-*}
    if [ -e "$1/tests/$name.rs" ] || [ -e "$1/tests/$name/main.rs" ]; then
        which="--workspace --test $name"
    else
        which="-p $(sed -n 's/^name = "\(.*\)"$/\1/p' "$1/Cargo.toml" | head -n 1)"
    fi
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' | sort -u | { grep . || echo; } | while read -r test; do
        echo "AGAIN$3: cargo test --locked $which${test:+ -- --exact $test}"
    done
}

# end_all VARIABLE: kills every process that has this in its environment.
end_all() {
    local process
    for process in /proc/[0-9]*; do
        ! grep -qsFxz "$1" "$process/environ" || kill -KILL "${process#/proc/}"
    done
}

# lane NAME LIST...: runs the test programs in these files one after the other, as cargo does: how (a niceness, or the suite that it is run
# on), its package's folder, the program, and of some which of its tests. All that a program says is shown when it fails, and once more at
# the very end; else its count.
lane() {
    local how folder program filter on command began status=0 name=$1
    shift
    while IFS=$'\t' read -r how folder program filter < <(next_of "$@"); do
        case $how in
            [0-9]*) on='' command=(nice -n "$how" env) ;;
            *) on=" on $how" command=(scripts/suite.sh "$how" run) ;;
        esac
        echo "     Running $program $filter$on" > "$work/$name.one"
        began=$SECONDS
        # In the foreground: an interrupt reaches it.
        # shellcheck disable=SC2016,SC2086  # expanded inside; filters are words
        if TARN_TEST_LANE=$work/$name timeout --foreground -k 30 "${program_minutes}m" "${command[@]}" \
            sh -c 'cd "$0" && CARGO_MANIFEST_DIR=$0 exec "$@"' "$folder" "$program" --show-output $filter < /dev/null >> "$work/$name.one" 2>&1 && { [ -z "$on" ] || grep -q '^test result: ok. [1-9]' "$work/$name.one"; }; then
            echo "${program##*/}$on: $(grep '^test result:' "$work/$name.one")"
        else
            if [ $((SECONDS - began)) -ge $((program_minutes * 60)) ]; then
                echo "ended after $program_minutes minutes: the test hangs that has begun and not ended" >> "$work/$name.one"
                end_all "TARN_TEST_LANE=$work/$name"
            fi
            status=1
            cat "$work/$name.one"
            { echo && echo "     Running $program $filter$on" && sed -n '/^failures:$/,$p' "$work/$name.one" && tail -n 5 "$work/$name.one"; } >> "$work/failed"
            again "$folder" "$program" "$on" < "$work/$name.one" >> "$work/again"
        fi
        cat "$work/$name.one" >> "$work/$name.log"
    done
    return "$status"
}

# count WHERE LOG...: adds up what these say, and keeps what tests say that could not be done there: such a test counts as passed.
count() {
    local where=$1 ok bad left skips
    shift
    read -r ok bad left < <(cat "$@" | awk '/^test result:/ { ok += $4; bad += $6; left += $8 } END { print ok + 0, bad + 0, left + 0 }')
    passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + left))
    mapfile -t skips < <(cat "$@" | grep -a '^SKIPPED: ' | sort | uniq -c)
    skipped+=("${skips[@]/%/$where}")
}

# Runs all tests. Those of clusters wait most of the time: two of them run at once, the longest first, beside one of the others, which
# makes way for them.
cargo_tests() {
    local status=0
    programs > "$work/programs" || return 1
    for long in 'site-' 'allocation-' ''; do
        grep "^$PWD/tests"$'\t' "$work/programs" | grep "/${long}[^/]*\$" | sed 's/^/0\t/' >> "$work/all-clusters"
    done
    awk '!seen[$0]++' "$work/all-clusters" > "$work/clusters"
    grep -v "^$PWD/tests"$'\t' "$work/programs" | sed 's/^/5\t/' > "$work/others"
    [ -s "$work/clusters" ] && [ -s "$work/others" ] || return 1
    export -f again end_all lane next_of
    export work
    # By xargs, as commands that bash itself starts beside others take no interrupt.
    printf '%s\n' "one clusters others" "two clusters others" "three others clusters" | xargs -P 3 -I % bash -c 'lane %' || status=1
    cargo test --workspace --locked --no-fail-fast --doc 2>&1 | tee "$work/doc.log" || status=1
    # shellcheck disable=SC2016 # cargo's quotes
    sed -n 's/^    `\(-p .* --doc\)`$/AGAIN: cargo test --locked \1/p' "$work/doc.log" >> "$work/again"
    count '' "$work"/*.log
    return "$status"
}

# Links of comments to types that are called otherwise by now.
links_in_comments() {
    RUSTDOCFLAGS='-D rustdoc::broken_intra_doc_links -A rustdoc::private_intra_doc_links' cargo doc --no-deps --document-private-items --workspace --locked --quiet
}

# clusters_on SUITE NAME...: of each test program with this name, or of `PROGRAM:FILTER` the tests that this names, on another Debian; the
# programs are those that were built here.
clusters_on() {
    local suite=$1 wanted name filter program status=0
    shift
    scripts/suite.sh "$suite" prepare cluster > "$work/$suite.made" 2>&1 || status=$?
    if [ "$status" -eq 3 ]; then
        skipped+=("clusters on Debian $suite: $(tail -n 1 "$work/$suite.made")")
        return
    elif [ "$status" -ne 0 ]; then
        tail -n 30 "$work/$suite.made"
        return 1
    fi
    for wanted; do
        name=${wanted%%:*} filter=
        [ "$name" = "$wanted" ] || filter=${wanted#*:}
        program=$(awk -F '\t' -v folder="$PWD/tests" -v name="/$name-[0-9a-f]+$" '$1 == folder && $2 ~ name { print $2 }' "$work/programs")
        [ -n "$program" ] || { echo "there is no test program $name"; status=1; continue; }
        printf '%s\t' "$suite" "$PWD/tests" "$program" >> "$work/$suite.list"
        echo "$filter" >> "$work/$suite.list"
    done
    printf '%s\n' one two | xargs -P 2 -I % bash -c "lane $suite-% $suite.list" || status=1
    count " (on $suite)" "$work/$suite"-*.log
    return "$status"
}

shell_scripts() {
    git ls-files -z -- '*.sh' 'examples/*.sbatch' .ci/run tests/cluster/slurm-cluster plugins/slurm/tarn-mode-helper services/memory-modes/tests/played apps/tarn/tests/inject/slurm-tools | xargs -0 shellcheck -x
}

python_scripts() {
    git ls-files -z -- '*.py' | xargs -0 /usr/bin/python3 -m pyflakes
}

# Their rule for verdicts, their needs, the output of other programs that they read, and their pages.
experiments() {
    /usr/bin/python3 -m unittest discover -s research/experiments -p 'test_*.py'
    /usr/bin/python3 -m unittest discover -s bench -p 'test_*.py'
}

# Versions of clang-format format the same code in different ways.
c_sources() {
    if ! clang-format --version | grep -q ' version 14\.'; then
        skipped+=("the format of C sources: that is clang-format 14's")
        return
    fi
    git ls-files -z -- 'transfer/data-plane/shim/*.[ch]' 'workflow/node/brick/*.[ch]' 'research/experiments/*.[ch]' 'tests/tests/*.[ch]' 'apps/tarn/tests/inject/*.[ch]' 'plugins/*.[ch]' | xargs -0 clang-format --dry-run --Werror
}

# The tests that differ most between the versions of Slurm and MPI: 14 minutes of them (docs/internals/stacks.md); `make
# soak` has all.
on_others=(mpi allocation:a_step_spans allocation:a_workflow_runs site:modes:: site:drive_begin::the_next_step site:power::a_node_on slurm_nodes site:jobs::three_jobs site:bad_days::an_array site:bad_days::features
    site:submit:: slurm_experiments:the_workflow slurm_modes slurm_spank)
started=$SECONDS
check "format" cargo fmt --all --check
check "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
check "no circles of imports, no errors without a type" scripts/measure-code --check
check "links in comments" links_in_comments
check "cargo test" cargo_tests
[ -n "${TARN_SUITE:-}" ] || check "what matters most of clusters, on Debian 13" clusters_on trixie "${on_others[@]}"
check "tests as an unprivileged user" scripts/test-unprivileged.sh
check "shell scripts" shell_scripts
check "python scripts" python_scripts
check "experiments and their pages" experiments
check "C shims and plug-ins" c_sources
check "montage: tarn gives what the plain shell gives" scripts/montage-check.sh

[ ! -s "$work/failed" ] || tail -n 300 "$work/failed"
for line in "${skipped[@]}"; do echo "NOT TESTED HERE: $line" >&2; done
for name in "${failures[@]}"; do echo "FAILED: $name" >&2; done
[ ! -s "$work/again" ] || cat "$work/again" >&2
result=ok
[ "$failed" -eq 0 ] || result=FAILED
echo "test result: $result. $passed passed; $failed failed; $ignored ignored; 0 measured; 0 filtered out; finished in $((SECONDS - started)).00s"
[ "$failed" -eq 0 ]
