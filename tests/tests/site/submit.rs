//! `tarn submit` of a workflow file.

use crate::setup::Site;
use std::fs;

/// Steps over nodes, over elements that are known and over entries that are not, in an order that is not that of the file.
const WORKFLOW: &str = r#"
name = "foam"
external = "ext"

[data.mesh]
source = "mesh"
[data.case]
size = "40 MiB"
scatter = "processor{rank}"
on_failure = "drain"
[data.counts]
[data.more]
dest = "out/more"
[data.result]
dest = "out/result"

[[step]]
name = "decompose"
run  = "cp $TARN_mesh/a $TARN_case/common; for r in 0 1 2 3; do mkdir -p $TARN_case/processor$r; echo $r > $TARN_case/processor$r/x; done"
time = "10m"
in   = ["mesh"]
out  = ["case"]

[[step]]
name  = "solve"
nodes = 2
tasks = 4
memory = "100 MiB"
env   = { WORD = "it's solved" }
run   = "cd $TARN_case && srun sh -c 'echo \"$WORD\" >> processor$SLURM_PROCID/x'"
inout = ["case:scatter"]

[[step]]
name = "count"
foreach = ["a", "b c", "d'e"]
env = { ITEM_IS = "<{item}>" }
run = "echo \"$ITEM_IS\" > \"$TARN_counts/$TARN_ITEM\""
out = ["counts"]

[[step]]
name = "each"
foreach = "counts/*"
max = 5
run = "cat \"$TARN_counts/$TARN_ITEM\" > \"$TARN_more/$TARN_ITEM.again\"; pwd >> $TARN_WORKFLOW_DIR/where"
in = ["counts/{item}"]
out = ["more"]
after = ["reconstruct"]

[[step]]
name = "reconstruct"
prelude = "WORD=done"
run  = "cat $TARN_case/processor*/x > $TARN_result/all; echo $WORD $(pwd) >> $TARN_WORKFLOW_DIR/where; helper > $TARN_result/helped"
in   = ["case:gather"]
out  = ["result"]
"#;

#[test]
fn a_workflow_file_becomes_jobs_that_hand_on_their_data() {
    let Some(site) = Site::up(2) else { return };
    let work = "mkdir -p work/mesh work/out work/ext; echo a > work/mesh/a; printf '#!/bin/sh\\necho helped\\n' > work/helper; chmod +x work/helper";
    site.alice(&["sh", "-c", work]);
    let folder = site.home("alice").join("work");
    fs::write(folder.join("foam.toml"), WORKFLOW).expect("a workflow");
    let shown = site.alice(&["tarn", "submit", "--dry-run", "work/foam.toml"]);
    assert_eq!(shown.matches("#!/bin/bash").count(), 5, "{shown}");
    assert_eq!(site.alice(&["squeue", "-h"]), "");

    // tarn lists the jobs that a killed submission has left; they may be of scripts.
    let script = "#!/bin/bash\n#TARN name = \"own\"\n#TARN [[step]]\ntrue\n";
    fs::write(folder.join("own.sh"), script).expect("a script");
    let hold = "cd work && sbatch --parsable --hold own.sh && sbatch --parsable --hold --job-name=foam/solve --wrap=true";
    let left = site.alice(&["sh", "-c", hold]);
    let left: Vec<&str> = left.split_whitespace().collect();
    let own = "tarn submit work/own.sh > /dev/null 2> work/told";
    site.alice(&["sh", "-c", own]);
    let stderr = || fs::read_to_string(folder.join("told")).expect("what was said");
    let expected = format!("`scancel {}`", left[0]);
    assert!(stderr().contains(&expected), "{left:?}: {}", stderr());

    let output = site.alice(&["sh", "-c", "tarn submit work/foam.toml 2> work/told"]);
    let expected = format!("`scancel {}`", left[1]);
    assert!(stderr().contains(&expected), "{left:?}: {}", stderr());
    site.alice(&[&["scancel"], &left[..]].concat());
    let lines: Vec<(&str, &str)> = output
        .lines()
        .map(|line| line.split_once(' ').expect("a job and its step"))
        .collect();
    let names: Vec<&str> = lines.iter().map(|(_, name)| *name).collect();
    assert_eq!(
        names,
        ["decompose", "solve", "count", "reconstruct", "each"]
    );
    // Of any state: the first ones may have ended by now.
    let queue = site.alice(&["squeue", "-h", "-t", "all", "-o", "%.40j"]);
    assert!(queue.contains("foam/each"), "{queue}");
    for (job, _) in &lines {
        site.wait_for(job, "COMPLETED");
    }
    let read = |name: &str| {
        fs::read_to_string(folder.join(name))
            .unwrap_or_else(|e| panic!("{name}: {e}\n{}", site.logs()))
    };
    let solved = "it's solved\n";
    assert_eq!(
        read("out/result/all"),
        format!("0\n{solved}1\n{solved}2\n{solved}3\n{solved}")
    );
    assert_eq!(read("out/result/helped"), "helped\n");
    for item in ["a", "b c", "d'e"] {
        assert_eq!(
            read(&format!("out/more/{item}.again")),
            format!("<{item}>\n")
        );
    }
    // Each ran in a folder of its own, which is gone.
    let places = read("where");
    assert_eq!(places.lines().count(), 4, "{places}");
    assert!(places.starts_with("done /tmp/"), "{places}");
    site.wait("nothing is left", || {
        site.alice(&["tarn", "data", "ls", "--site"]).is_empty()
    });

    // All or none: the second step wants resources that no node has.
    let wants = WORKFLOW.replace("nodes = 2\n", "nodes = 2\ngpus = 1\n");
    fs::write(folder.join("wants.toml"), wants).expect("a workflow");
    let refused = site
        .cluster
        .exec("alice", &["tarn", "submit", "work/wants.toml"]);
    let why = format!("{:#}", refused.expect_err("there are no GPUs"));
    assert!(why.contains("`sbatch` of solve"), "{why}");
    site.wait("no job is left", || {
        site.alice(&["squeue", "-h"]).is_empty()
    });
    // Nor is any submitted that no controller would bring data for.
    let alone = ["env", "TARN_CONTROLLER=/run/nobody", "tarn", "submit"];
    let words = [&alone[..], &["work/foam.toml"]].concat();
    let refused = site.cluster.exec("alice", &words);
    let why = format!("{:#}", refused.expect_err("nobody is there"));
    assert!(why.contains("nothing was submitted"), "{why}");
    assert!(site.alice(&["squeue", "-h"]).is_empty());
    // Settings that jobs cannot have are reported before any job is submitted.
    let tried = WORKFLOW.replace("time = \"10m\"", "restart = \"image\"");
    fs::write(folder.join("tried.toml"), tried).expect("a workflow");
    let refused = site
        .cluster
        .exec("alice", &["tarn", "submit", "work/tried.toml"]);
    let why = format!("{:#}", refused.expect_err("images"));
    assert!(why.contains("step `decompose`: `restart"), "{why}");
}
