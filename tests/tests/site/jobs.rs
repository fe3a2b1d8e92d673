//! The way of jobs.

use crate::setup::Site;
use std::fs;

/// The input of [`WHERE`].
const MESH: &str = "mkdir -p ~/case; echo mesh > ~/case/mesh";
/// A job that prints where it ran, if its input is there.
const WHERE: &str = "\
#SBATCH -N1
#TARN name = \"foam\"
#TARN data.case.source = \"case\"
#TARN [[step]]
#TARN in = [\"case\"]
[ \"$(cat $TARN_case/mesh)\" = mesh ] && hostname > ~/where
";

/// Weiland 2018, figures 3 to 5, as three jobs: no data that they hand on touches the external store.
#[test]
fn three_jobs_hand_on_their_data_on_the_nodes() {
    let Some(site) = Site::up(2) else { return };
    let home = site.home("alice");
    site.alice(&[
        "sh",
        "-c",
        "mkdir -p ~/case ~/out; echo mesh > ~/case/mesh; chmod 700 ~",
    ]);
    let decompose = "\
#SBATCH -N1 -n2 -J decompose
#TARN name = \"foam\"
#TARN data.case.source = \"case\"
#TARN data.fields = { scatter = \"p{rank}\", size = \"1 MiB\" }
#TARN [[step]]
#TARN in = [\"case\"]
#TARN out = [\"fields\"]
set -e
mkdir $TARN_fields/p0 $TARN_fields/p1
for p in 0 1; do sed s/$/$p/ $TARN_case/mesh > $TARN_fields/p$p/mesh; done
";
    let solve = "\
#SBATCH -N2 -n2 -J solve
#TARN name = \"foam\"
#TARN data.fields.scatter = \"p{rank}\"
#TARN [[step]]
#TARN inout = [\"fields:scatter\"]
srun sh -c 'cat $TARN_fields/p$SLURM_PROCID/mesh > $TARN_fields/p$SLURM_PROCID/u; hostname >> $TARN_fields/p$SLURM_PROCID/u'
";
    let reconstruct = "\
#SBATCH -N1 -n1 -J reconstruct
#TARN name = \"foam\"
#TARN data.result.dest = \"out/result\"
#TARN [[step]]
#TARN in = [\"fields\"]
#TARN out = [\"result\"]
cat $TARN_fields/p*/u > $TARN_result/u
";
    for (name, script) in [
        ("decompose.sh", decompose),
        ("solve.sh", solve),
        ("reconstruct.sh", reconstruct),
    ] {
        fs::write(home.join(name), format!("#!/bin/bash\n{script}")).expect("a script");
    }
    let submitted = site.alice(&[
        "sh",
        "-c",
        "cd && tarn submit decompose.sh solve.sh reconstruct.sh",
    ]);
    let jobs = submitted
        .lines()
        .map(|line| line.split(' ').next().expect("a number").to_owned());
    let [first, second, third] = jobs.collect::<Vec<_>>().try_into().expect("three jobs");
    site.wait_for(&third, "COMPLETED");
    site.wait("the result is outside", || {
        home.join("out/result/u").exists()
    });
    let result = fs::read_to_string(home.join("out/result/u")).expect("the result");
    assert_eq!(result, "mesh0\nnode1\nmesh1\nnode2\n", "{}", site.logs());
    for job in [&first, &second, &third] {
        site.wait("it has left", || site.why("alice", job).contains("ended"));
    }
    // Only the inputs and the data that was to go out.
    let names = |folder: &str| {
        let mut names: Vec<String> = fs::read_dir(home.join(folder))
            .expect("a folder")
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("case"), ["mesh"]);
    // By the record of it the next job knows which files it may replace.
    let mut out = names("out");
    out.retain(|name| !(name.starts_with(".result.tarn-") && name.ends_with(".manifest")));
    assert_eq!(out, ["result"]);
    // Slurm shows the free space.
    site.wait("sinfo shows the room", || {
        let shown = site.alice(&["sinfo", "-h", "-O", "NodeList,Extra:60"]);
        let space = |line: &str| line.contains(" of ") && line.trim_end().ends_with(" free");
        shown.contains("tarn ") && shown.lines().all(space)
    });
    // Submitted as a whole, it leaves nothing behind.
    for node in [1, 2] {
        site.wait("nothing is left on the nodes", || {
            let command = "find /scm/tarn/u*/d /scm/tarn/u*/j -type f | wc -l";
            let left = site.cluster.node(node).exec("root", &["sh", "-c", command]);
            left.is_ok_and(|output| output.trim() == "0")
        });
    }
}

#[test]
fn a_job_that_asks_for_more_memory_than_1lm_has_gets_nodes_in_the_other_mode() {
    let Some(site) = Site::up(1) else { return };
    let modes = "availablefeatures=mode_1lm,mode_2lm,fast";
    site.root(&["scontrol", "update", "nodename=node1", modes]);
    let features = |words: &[&str]| {
        let held = ["sbatch", "--parsable", "-H", "--wrap", "true"];
        let job = site.alice(&[&held[..], words].concat());
        let about = site.root(&["scontrol", "-o", "show", "job", &job]);
        let mut fields = about.split_whitespace();
        let field = fields.find_map(|word| word.strip_prefix("Features="));
        field.unwrap_or_default().to_owned()
    };
    assert_eq!(features(&["--mem=3000"]), "(null)");
    assert_eq!(features(&["--mem=3500"]), "mode_2lm");
    assert_eq!(features(&["--mem=3500", "-C", "fast"]), "fast&mode_2lm");
    // A requested mode is kept.
    assert_eq!(features(&["--mem=3500", "-C", "mode_1lm"]), "mode_1lm");
    assert_eq!(features(&["--mem=3000", "-C", "fast"]), "fast");
}

/// docs/admin/energy.md, "On a site", with an emulated meter.
#[test]
fn of_two_nodes_that_are_equal_otherwise_a_job_prefers_the_one_that_draws_less() {
    let Some(site) = Site::up(2) else { return };
    site.start_node_with_meter(1, 300);
    site.start_node_with_meter(2, 150);
    site.wait("both say what they draw", || {
        let status = site.root(&["tarn", "slurm", "status"]);
        status.contains("300 W (hwmon)") && status.contains("150 W (hwmon)")
    });
    site.alice(&["sh", "-c", MESH]);
    let job = site.submit("alice", "read.sh", WHERE, &[]);
    let job = job.expect("it is taken");
    site.wait_for(&job, "COMPLETED");
    let place = fs::read_to_string(site.home("alice").join("where"));
    assert_eq!(place.expect("where it ran"), "node2\n", "{}", site.logs());
}

/// Jackson 2019, section 8: a system whose only storage is the nodes' own. Nothing here names a place outside, and the home cannot be used.
#[test]
fn jobs_need_no_file_system_outside() {
    let Some(site) = Site::up(2) else { return };
    site.root(&["chmod", "0", "/shared/home/alice"]);
    let submit = |script: &str| {
        let all = format!(
            "cd / && sbatch --parsable -D / -o /dev/null << 'END'\n#!/bin/bash\n#TARN name = \"inside\"\n{script}END"
        );
        let job = site.cluster.exec("alice", &["bash", "-c", &all]);
        job.unwrap_or_else(|e| panic!("{e:#}\n{}", site.logs()))
            .trim()
            .to_owned()
    };
    submit(
        "\
#TARN data.numbers = { size = \"1 MiB\", keep = \"1d\" }
#TARN [[step]]
#TARN out = [\"numbers\"]
seq 100 > $TARN_numbers/n
",
    );
    submit(
        "\
#TARN data.numbers = {}
#TARN data.sum = { size = \"1 MiB\", keep = \"1d\" }
#TARN [[step]]
#TARN in = [\"numbers\"]
#TARN out = [\"sum\"]
awk '{ s += $1 } END { print s }' $TARN_numbers/n > $TARN_sum/s
",
    );
    let last = submit(
        "\
#TARN data.sum = {}
#TARN [[step]]
#TARN in = [\"sum\"]
[ \"$(cat $TARN_sum/s)\" = 5050 ]
",
    );
    site.wait_for(&last, "COMPLETED");
    let listed = site
        .cluster
        .exec("alice", &["bash", "-c", "cd / && tarn data ls --site"]);
    let listed = listed.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(
        listed.contains("inside/numbers") && listed.contains("inside/sum"),
        "{listed}"
    );
}

/// Weiland 2018, section 3: nodes are allocated by the storage that is free on them.
#[test]
fn a_job_gets_a_node_that_has_space_for_what_it_writes() {
    let Some(site) = Site::up(2) else { return };
    let script = |name: &str, mib: u32| {
        format!(
            "\
#SBATCH -N1
#TARN name = \"{name}\"
#TARN data.big = {{ size = \"{mib} MiB\", keep = \"1d\" }}
#TARN [[step]]
#TARN out = [\"big\"]
head -c {mib}M /dev/zero > $TARN_big/zeros; hostname > ~/where-{name}
"
        )
    };
    let submit = |name: &str, mib: u32, options: &[&str]| {
        let job = site.submit("alice", &format!("{name}.sh"), &script(name, mib), options);
        job.expect("it is taken")
    };
    let place = |name: &str| {
        let place = fs::read_to_string(site.home("alice").join(format!("where-{name}")));
        place.unwrap_or_else(|e| panic!("{e}: {}", site.logs()))
    };
    let first = submit("first", 400, &["-w", "node1"]);
    site.wait_for(&first, "COMPLETED");
    // Slurm alone would give it the first node again.
    let second = submit("second", 300, &[]);
    site.wait_for(&second, "COMPLETED");
    assert_eq!(place("second"), "node2\n", "{}", site.logs());
    // It waits for a node with space, until there is space on another one.
    site.alice(&["sh", "-c", "tarn data rm second/big"]);
    let busy = "sbatch --parsable -N1 -w node2 --exclusive -o /dev/null --wrap 'sleep 600'";
    let busy = site.alice(&["sh", "-c", busy]);
    site.wait_for(&busy, "RUNNING");
    let third = submit("third", 300, &[]);
    let excludes = || site.root(&["squeue", "-h", "-j", &third, "-o", "%x"]);
    site.wait("it does not get the full node", || {
        excludes().trim() == "node1"
    });
    let state = site.root(&["squeue", "-h", "-j", &third, "-o", "%T"]);
    assert_eq!(state.trim(), "PENDING");
    site.alice(&["sh", "-c", "tarn data rm first/big"]);
    site.wait_for(&third, "COMPLETED");
    assert_eq!(place("third"), "node1\n", "{}", site.logs());
    site.alice(&["scancel", &busy]);
}

/// Weiland 2018, section 2.2: data comes before the job, while its nodes compute for others.
#[test]
fn what_a_job_reads_is_brought_while_it_waits_for_nodes() {
    let Some(site) = Site::up(2) else { return };
    let busy = site.hold("node[1-2]");
    site.alice(&["sh", "-c", MESH]);
    let job = site.submit("alice", "read.sh", WHERE, &[]);
    let job = job.expect("it is taken");
    site.wait("its data is on a node", || {
        let why = site.why("alice", &job);
        why.contains("it is expected on node1: what it reads is there")
    });
    assert_eq!(site.state(&job), "PENDING");
    site.let_go(&busy);
    site.wait_for(&job, "COMPLETED");
    let place = fs::read_to_string(site.home("alice").join("where"));
    assert_eq!(place.expect("where it ran"), "node1\n", "{}", site.logs());
}
