#!/bin/bash
# soak-kill.sh KILLS SEED: run the demo's workflow and kill tarn with SIGKILL at random moments, KILLS times in all; after each
# kill nothing of it may still run, and `tarn resume` must continue. Whenever the workflow gets to its end, its results must be
# those of plain.sh, and its tiers empty; then it starts from nothing.
set -euo pipefail
kills_wanted=$1
RANDOM=$2
seed=$2
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
# Nothing is to be left on the tier.
export TARN_CACHE=0
tarn_built release
# Longer than the workflow takes, so that some kills come late and some runs get through.
longest_ms=${LONGEST_MS:-8000}

work=$(mktemp -d "${TMPDIR:-/tmp}/soak-kill.XXXXXX")
example=$work/example
workflow=$example/workflow.toml
# In the environment of every process of a step: marks processes that outlive their tarn.
export TARN_SOAK_MARK=$work
tier=$(mktemp -d /dev/shm/soak-kill.XXXXXX)
pid=
clean() {
    [ -z "$pid" ] || kill -9 "$pid" 2> /dev/null || true
    rm -rf "$work" "$tier"
}
trap clean EXIT

fail() {
    echo "soak-kill: $*; again with: scripts/soak-kill.sh $kills_wanted $seed" >&2
    tail -n 30 "$work/log" >&2
    exit 1
}

# The processes that tarn has started and that still run. This shell itself was started without the mark.
survivors() {
    grep -lzs "^TARN_SOAK_MARK=$work\$" /proc/[0-9]*/environ | cut -d / -f 3 | grep -vxF -e "$$" -e "$BASHPID" || true
}

nothing_survives() {
    local left
    for _ in {1..50}; do
        # Those that look are marked too, but gone at once.
        left=$(for p in $(survivors); do [ ! -e "/proc/$p/exe" ] || echo "$p"; done)
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    for p in $left; do tr '\0' ' ' < "/proc/$p/cmdline" >&2 || true; done
    fail "processes outlive a killed tarn"
}

cp -r examples/montage "$example"
"$example/make_tiles.py" "$example/raw"
"$example/plain.sh" "$example/raw" "$work/plain" "$(nproc)"
expected=$(sums "$work/plain")
rm -r "$work/plain"

kills=0 finished=0 verb=run
while [ "$kills" -lt "$kills_wanted" ]; do
    if [ "$verb" = run ]; then
        rm -rf "$example/results" "$example/.tarn"
        "$tarn" run "$workflow" --nodes 4 --tier "tmpfs=$tier" > "$work/log" 2>&1 &
    else
        "$tarn" resume --state "$example/.tarn" > "$work/log" 2>&1 &
    fi
    pid=$!
    delay=$((RANDOM * longest_ms / 32768))
    sleep "$((delay / 1000)).$(printf %03d $((delay % 1000)))"
    kill -9 "$pid" 2> /dev/null || true
    status=0
    wait "$pid" 2> /dev/null || status=$?
    pid=
    nothing_survives
    case $status in
        0)
            [ "$(sums "$example/results")" = "$expected" ] || fail "the results differ from plain.sh's"
            left=$(find "$tier" -mindepth 1 ! -name ledger.lock)
            [ -z "$left" ] || fail "left on the tier: $left"
            finished=$((finished + 1))
            verb=run
            ;;
        137)
            kills=$((kills + 1))
            verb=resume
            echo "soak-kill: $kills of $kills_wanted killed, $finished got through" >&2
            ;;
        # Killed before there was anything to resume.
        7) verb=run ;;
        *) fail "tarn $verb ended with exit code $status" ;;
    esac
done
[ "$finished" -gt 0 ] || fail "no run got through; raise LONGEST_MS"
echo "soak-kill: ok: $kills kills, $finished runs to the end"
