//! Results that `tarn` has reported as done are there if the power fails right afterwards. A loop device is copied as its disk
//! has it at that moment, without the data that the kernel still had in memory; the copy is mounted, under another boot id. Only
//! root can; elsewhere the tests say so.

use std::path::Path;
use std::process::Command;

/// Makes a disk with `in/f1` and `in/f2`, and says what tests do with it.
const DISK: &str = r#"
set -eu
cd "$WORK"
mkdir disk after
truncate -s 96M image
mkfs.ext4 -q image >/dev/null 2>&1 || exit 99
mount -o loop image disk 2>/dev/null || exit 99
mkdir disk/in
echo one > disk/in/f1
seq 30000 > disk/in/f2
sync -f disk
cat /proc/sys/kernel/random/uuid > boot
# The power goes: the disk has what had been written to it by now.
disk=image
cut() { cd "$WORK"; cp --sparse=always $disk $disk.cut; umount disk; disk=$disk.cut; mount -o loop $disk disk; }
# As after the next start of the machine.
again() { unshare -m --propagation private sh -c 'mount --bind "$WORK/boot" /proc/sys/kernel/random/boot_id; cd "$WORK/disk"; exec "$@"' sh "$@"; }
# Of another disk than the machine's memory: what is kept there is lost with it.
run() { (cd "$WORK/disk"; "$TARN" run --local --tier fast="$WORK/disk/tier:60MiB" workflow.toml); }
# Whatever happens, nothing waits here for ever.
trap 'touch "$WORK/go"; kill $(jobs -p) 2> /dev/null || true' EXIT
run_again() { again "$TARN" run --local --tier fast="$WORK/disk/tier:60MiB" workflow.toml; }
"#;

/// Runs this on such a disk.
fn with_disk(script: &str) {
    let work = tempfile::tempdir().expect("a temporary folder");
    let script = format!("{DISK}{script}");
    let ran = Command::new("unshare")
        .args(["-m", "--propagation", "private", "bash", "-c", &script])
        .env("WORK", work.path())
        .env("TARN", env!("CARGO_BIN_EXE_tarn"))
        .env("XDG_CONFIG_HOME", work.path().join("config"))
        .env_remove("TARN_STATE")
        .current_dir(Path::new("/"))
        .output();
    let Ok(ran) = ran else {
        eprintln!("skipped: no unshare");
        return;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ran.stdout), text(&ran.stderr));
    if ran.status.code() == Some(99) || err.starts_with("unshare:") {
        eprintln!("skipped: no disk can be made and mounted here");
        return;
    }
    assert!(ran.status.success(), "{}\n{out}\n{err}", ran.status);
}

#[test]
fn what_was_copied_is_there_with_its_name() {
    with_disk(
        r#"
for what in f1 f2 folder replaced; do
    echo old > disk/old; rm -rf disk/new; sync -f disk
    case $what in
        folder) "$TARN" data copy disk/in disk/new; from=in to=new;;
        replaced) "$TARN" data copy --replace disk/in/f2 disk/old; from=in/f2 to=old;;
        *) "$TARN" data copy disk/in/$what disk/new; from=in/$what to=new;;
    esac
    cp --sparse=always image snapshot
    mount -o loop snapshot after
    diff -r disk/$from after/$to
    umount after
done
"#,
    );
}

#[test]
fn what_is_kept_on_a_disk_is_there() {
    with_disk(
        r#"
printf 'name = "k"\n[data.i]\nsource = "in"\n[data.k]\nkeep = "forever"\n[[step]]\nname = "s"\nin = ["i"]\nout = ["k"]\nrun = "cp $TARN_i/* $TARN_k/"\n' > disk/workflow.toml
sync -f disk
run
cut
again "$TARN" data verify k
again "$TARN" data get k got
diff -r disk/in disk/got
run_again 2> said
! grep -E "changed or damaged|is gone" said
"#,
    );
}

#[test]
fn what_was_put_or_drained_is_there() {
    with_disk(
        r#"
(cd disk; "$TARN" data put in p --local --tier fast="$WORK/disk/tier:60MiB")
cut
again "$TARN" data get p got
diff -r disk/in disk/got
again "$TARN" data drain p drained
cut
diff -r disk/in disk/drained
"#,
    );
}

#[test]
fn what_was_delivered_is_there_and_known_as_tarns_own() {
    with_disk(
        r#"
printf 'name = "d"\n[data.i]\nsource = "in"\n[data.o]\ndest = "out"\n[[step]]\nname = "s"\nin = ["i"]\nout = ["o"]\nrun = "cp $TARN_i/* $TARN_o/"\n' > disk/workflow.toml
sync -f disk
for text in two three; do
    run
    cut
    diff -r disk/in disk/out
    echo $text > disk/in/f1
    run_again
    diff -r disk/in disk/out
done
"#,
    );
}

#[test]
fn a_run_that_was_in_the_middle_is_resumed_with_what_its_source_holds() {
    with_disk(
        r#"
printf 'name = "m"\n[data.i]\nsource = "in"\n[data.o]\ndest = "out"\n[[step]]\nname = "s"\nin = ["i"]\nout = ["o"]\nrun = "echo > '$WORK'/began; until [ -e '$WORK'/go ]; do sleep 0.1; done; cp $TARN_i/* $TARN_o/"\n' > disk/workflow.toml
sync -f disk
run &
until [ -e began ]; do sleep 0.1; done
cp --sparse=always image image.cut
touch go
wait $!
umount disk
mount -o loop image.cut disk
# The copy of the source is there, its bytes were not on the disk yet.
! diff -r disk/in disk/tier/m*/node0/parts/i.src.* 2> /dev/null
again "$TARN" resume
diff -r disk/in disk/out
"#,
    );
}

#[test]
fn what_lists_the_files_of_a_source_may_be_torn() {
    with_disk(
        r#"
printf 'name = "t"\n[data.i]\nsource = "in"\n[data.o]\ndest = "out"\n[[step]]\nname = "s"\nin = ["i"]\nout = ["o"]\nrun = "echo > '$WORK'/began; until [ -e '$WORK'/go ]; do sleep 0.1; done; cp $TARN_i/* $TARN_o/"\n' > disk/workflow.toml
run &
until [ -e began ]; do sleep 0.1; done
read -r tarn _ < disk/.tarn/locks/t.lock
kill -9 $tarn
! wait $!
touch go
for manifest in disk/.tarn/manifests/*/i.src.*; do : > "$manifest"; done
rm -r disk/tier
again "$TARN" resume
diff -r disk/in disk/out
"#,
    );
}
