//! `/tmp`, `/var/tmp` and `/dev/shm` are a step's own: files that scripts write there by their process number meet nobody else's.

mod common;

use common::{Ran, Site, until};
use std::path::Path;

/// Two instances at a time whose processes have the same numbers, as each begins to count by itself.
const WORKFLOW: &str = r#"
name = "own"
[data.o]
dest = "o"
[[step]]
name = "p"
foreach = ["a", "b"]
out = ["o"]
run = '''
echo $TARN_ITEM > /tmp/tarn-test-TAG.$$; echo $TARN_ITEM > /dev/shm/tarn-test-TAG.$$
touch $TARN_WORKFLOW_DIR/wrote.$TARN_ITEM
for i in $(seq 1000); do test -e $TARN_WORKFLOW_DIR/wrote.a -a -e $TARN_WORKFLOW_DIR/wrote.b && break; sleep 0.02; done
cat /tmp/tarn-test-TAG.$$ /dev/shm/tarn-test-TAG.$$ > $TARN_o/$TARN_ITEM
'''
"#;

fn left(tag: &str) -> Vec<String> {
    let mut all = Vec::new();
    for root in ["/tmp", "/dev/shm"] {
        let entries = std::fs::read_dir(root).expect("a folder of everybody");
        let names = entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned());
        all.extend(names.filter(|n| n.starts_with(&format!("tarn-test-{tag}."))));
    }
    all
}

#[test]
fn steps_at_the_same_time_have_their_own_files_in_tmp() {
    let tag = std::process::id().to_string();
    let site = Site::new(&WORKFLOW.replace("TAG", &tag)).with(&["--nodes", "2"]);
    site.run().exits(0);
    for item in ["a", "b"] {
        assert_eq!(site.read(&format!("o/{item}")), format!("{item}\n{item}\n"));
    }
    assert!(left(&tag).is_empty(), "{:?}", left(&tag));
    site.leaves_nothing_on_its_tier();
}

/// A checkout, a workflow, its tier, its state and its programs below /tmp, as on a machine where somebody tries it.
#[test]
fn a_workflow_that_is_below_tmp_finds_all_that_is_its_own() {
    let site = Site::new(
        r#"
name = "below"
[data.o]
dest = "o"
[[step]]
name = "p"
out = ["o"]
run = "tool > $TARN_o/x; tarn data ls --state $TARN_WORKFLOW_DIR/.tarn > /tmp/list; cat $TARN_WORKFLOW_DIR/in/y /tmp/list >> $TARN_o/x"
"#,
    );
    site.write("tool", "#!/bin/sh\ncat \"$(dirname \"$0\")/in/y\"\n");
    site.write("in/y", "y\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(site.path("tool"), mode).expect("a program");
    site.run().exits(0);
    assert!(site.read("o/x").starts_with("y\ny\n"));
    site.leaves_nothing_on_its_tier();
}

/// A process that is started outside of a step cannot write to the step's folders, whatever its owner: nobody would find that
/// again.
#[test]
fn nothing_is_written_to_the_folders_of_a_step_from_outside() {
    let site = Site::new(
        r#"
name = "closed"
[data.o]
dest = "o"
[[step]]
name = "p"
out = ["o"]
run = '''
echo $TARN_SCRATCH > $TARN_WORKFLOW_DIR/scratch.new; echo $TARN_o >> $TARN_WORKFLOW_DIR/scratch.new
mv $TARN_WORKFLOW_DIR/scratch.new $TARN_WORKFLOW_DIR/paths
until [ -e $TARN_WORKFLOW_DIR/go ]; do sleep 0.02; done
ls -A $TARN_SCRATCH > $TARN_o/seen; echo own > $TARN_SCRATCH/own; cat $TARN_SCRATCH/own >> $TARN_o/seen
'''
"#,
    );
    let run = site.begin(&[]);
    until("the step", || site.path("paths").exists());
    let paths = site.read("paths");
    let written = paths.lines().filter(|path| {
        let path = Path::new(path);
        std::fs::write(path.join("rank1"), "lost").is_ok()
            || std::fs::create_dir(path.join("rank2")).is_ok()
    });
    let written: Vec<_> = written.collect();
    site.write("go", "");
    Ran::end(run).exits(0);
    assert!(written.is_empty(), "{written:?}");
    assert_eq!(site.read("o/seen"), "own\n");
    site.leaves_nothing_on_its_tier();
}
