//! The workflows of these tests.

/// All distributions between steps of one node and of two, and pieces over both nodes.
pub(crate) const SPREAD: &str = r#"
name = "sealed"

[data.raw]
source = "in"
encrypt = true

[data.case]
scatter = "p{rank}"
encrypt = true

[data.both]
encrypt = true

[data.piece]
encrypt = true

[data.result]
dest = "out"
encrypt = true

[[step]]
name = "split"
run = "for r in 0 1 2 3; do mkdir $TARN_case/p$r; echo $(cat $TARN_raw/word) $r > $TARN_case/p$r/text; done"
in = ["raw"]
out = ["case"]

[[step]]
name = "solve"
nodes = 2
tasks = 4
run = "solve.sh"
in = ["raw"]
inout = ["case:scatter"]
out = ["both:broadcast"]

[[step]]
name = "work"
foreach = "raw/f*"
cores = 4
run = "sleep 0.5; cat $TARN_raw/$TARN_ITEM $TARN_raw/word > $TARN_piece/$TARN_ITEM; echo $TARN_NODE > $TARN_piece/$TARN_ITEM.node"
in = ["raw"]
out = ["piece"]

[[step]]
name = "join"
run = """
cp -r $TARN_case/. $TARN_result
cp $TARN_both/text $TARN_result/both
(cd $TARN_case && echo p*) > $TARN_result/sum
grep -l $(cat $TARN_WORKFLOW_DIR/in/word) $TARN_piece/f? | wc -l > $TARN_result/pieces
cat $TARN_piece/*.node | sort -u > $TARN_result/on
cp $TARN_case/p0/ways $TARN_result/ways
"""
in = ["case:gather", "both", "piece"]
out = ["result"]
"#;

/// The work of the two nodes: each sees its ranks' parts alone, however it is started there, and waits in the middle.
pub(crate) const TALK: &str = r#"#!/bin/bash
set -eu
other=$(sed -n 2p "$TARN_HOSTFILE" | cut -d ' ' -f 1)
work='for p in "$TARN_case"/p*; do echo seen >> "$p/text"; done
    echo $(cat "$TARN_raw/word") all > "$TARN_both/text"
    cp "$TARN_raw/word" "$TARN_SCRATCH/left"
    ! touch "$TARN_raw/new" 2> /dev/null'
bash -c "$work"
tarn exec "$other" -- bash -c "$work"
ways=exec
[ ! -e "$TARN_case/p2" ]
srun --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist="$other" tarn enter bash -c '
    [ "$(cat "$TARN_raw/word")" = "$(head -n 1 "$TARN_case/p2/text" | cut -d " " -f 1)" ] && [ ! -e "$TARN_case/p0" ]'
ways="$ways srun"
if command -v mpirun > /dev/null; then
    [ "$(mpirun -np 4 bash -c 'cat "$TARN_raw/word" > "$TARN_SCRATCH/rank" && echo "$TARN_NODE"' | sort -u | wc -l)" = 2 ]
    ways="$ways mpirun"
fi
echo "$ways" > "$TARN_case/p0/ways"
echo "$ways" > "$TARN_WORKFLOW_DIR/ways"
touch "$TARN_WORKFLOW_DIR/waits"
while [ ! -e "$TARN_WORKFLOW_DIR/go" ]; do sleep 0.1; done
"#;

/// A chain, slow enough to be disturbed.
pub(crate) const CHAIN: &str = r#"
name = "chain"

[data.a]
encrypt = true

[data.b]
encrypt = true

[data.end]
dest = "out"
encrypt = true

[[step]]
name = "first"
run = "cp $TARN_WORKFLOW_DIR/in/word $TARN_a/word; dd if=/dev/zero of=$TARN_a/zeros bs=1M count=8 status=none"
out = ["a"]

[[step]]
name = "second"
run = "cp $TARN_a/word $TARN_b/word; echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; echo b > $TARN_b/b"
in = ["a"]
out = ["b"]

[[step]]
name = "third"
run = "cat $TARN_b/word $TARN_b/b > $TARN_end/text"
in = ["a", "b"]
out = ["end"]
"#;

/// Its tier has space for one of two datasets: the one that is read later waits in the drained area.
pub(crate) const DRAINED: &str = r#"
name = "drained"
external = "external"

[data.made]
size = "40 MiB"
encrypt = true

[data.other]
size = "40 MiB"
encrypt = true

[data.used]
encrypt = true

[data.end]
dest = "out"
encrypt = true

[[step]]
name = "make"
run = "cp $TARN_WORKFLOW_DIR/in/word $TARN_made/word; (yes $(cat $TARN_WORKFLOW_DIR/in/word) || true) | head -c 36000000 > $TARN_made/many"
out = ["made"]

[[step]]
name = "fill"
after = ["make"]
run = "head -c 36000000 /dev/zero > $TARN_other/zeros"
out = ["other"]

[[step]]
name = "use"
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; while [ ! -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.1; done; wc -c < $TARN_other/zeros > $TARN_used/size"
in = ["other"]
out = ["used"]

[[step]]
name = "end"
run = "cp $TARN_made/word $TARN_used/size $TARN_end"
in = ["made", "used"]
out = ["end"]
"#;

/// The output of the first step is kept; both nodes of the second read it.
pub(crate) const KEPT: &str = r#"
name = "kept"

[data.stays]
encrypt = true
keep = "forever"

[data.end]
dest = "out"
encrypt = true

[[step]]
name = "make"
run = "echo $(cat $TARN_WORKFLOW_DIR/in/word) made > $TARN_stays/text"
out = ["stays"]

[[step]]
name = "end"
nodes = 2
tasks = 2
retries = 1
run = "for n in $(cut -d ' ' -f 1 $TARN_HOSTFILE); do tarn exec $n -- cat $TARN_stays/text >> $TARN_end/text; done # 1"
in = ["stays"]
out = ["end:single"]
"#;

/// Two nodes with parts of different sizes.
pub(crate) const WIDE: &str = r#"
name = "wide"

[data.case]
source = "in"
scatter = "p{rank}"
encrypt = true

[data.notes]
dest = "out"

[[step]]
name = "wide"
nodes = 2
tasks = 2
run = "echo $TARN_NODE >> $TARN_WORKFLOW_DIR/began; echo ok > $TARN_notes/ok"
in = ["case:scatter"]
out = ["notes:single"]
"#;
