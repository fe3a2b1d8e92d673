#!/bin/bash
# fuzz.sh [TARGET...]: libFuzzer looks for bytes that break what reads them, SECONDS_EACH (600) seconds for each target, JOBS (the
# cores) targets at a time; all of them, if none is named. Its findings are in target/fuzz/TARGET; status 1 if it finds anything.
# docs/internals/testing.md.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
seconds=${SECONDS_EACH:-600} jobs=${JOBS:-$(nproc)}
folder=$PWD/target/fuzz
mkdir -p "$folder"
# Coverage as libFuzzer wants it, by the compiler that the repository names: no AddressSanitizer, which is for nightly compilers.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
 -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target, build scripts are built without these flags.
RUSTFLAGS=${flags//$'\n'/} CARGO_TARGET_DIR=$folder/build cargo build --release --locked --manifest-path fuzz/Cargo.toml --target "$host"
program=$folder/build/$host/release/tarn-fuzzer
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(sed -n 's/^ *target("\([a-z-]*\)",.*/\1/p' tests/fuzz/src/lib.rs); fi

one() {
    local corpus=$folder/$1/corpus
    mkdir -p "$corpus"
    # At most 512 MiB of memory, 64 KiB an input, 15 s for one.
    (cd "$folder/$1" && FUZZ_TARGET=$1 FUZZ_SEEDS=$corpus "$program" corpus -max_total_time="$seconds" -rss_limit_mb=512 \
        -max_len=65536 -timeout=15 -print_final_stats=1 > log 2>&1) || true
}
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    one "$target" &
done
wait

found=0
printf '%-22s %14s %9s %8s  %s\n' target executions coverage corpus findings
for target in "${targets[@]}"; do
    log=$folder/$target/log
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d ' ' -f 2 || true)
    finds=$(find "$folder/$target" -maxdepth 1 \( -name 'crash-*' -o -name 'timeout-*' -o -name 'oom-*' \) | wc -l)
    if [ -z "$runs" ] || [ "$finds" -gt 0 ]; then found=1; fi
    printf '%-22s %14s %9s %8s  %s\n' "$target" "${runs:-none}" "${coverage:-?}" "$(find "$folder/$target/corpus" -type f | wc -l)" "$finds"
done
exit $found
