//! examples/openfoam on two nodes of a real Slurm gives the result of OpenFOAM alone, to the last byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_tests::slurm::{Cluster, run_for_output};
use tarn_tests::{fixture, tree};

/// Cells along each edge, and time steps: a second of work.
const SIZE: [(&str, &str); 2] = [("N      60;", "N      12;"), ("steps  10;", "steps  3;")];

/// A cluster with tarn and the example in a folder of alice, or a reason on stderr why there is none.
fn cluster(features: &[&str]) -> Option<(Cluster, PathBuf)> {
    let programs = ["-c", "command -v icoFoam && command -v mpirun"];
    let found = Command::new("sh").args(programs).output().expect("sh");
    if !found.status.success() {
        eprintln!("SKIPPED: no OpenFOAM here: scripts/deps.sh openfoam installs it");
        return None;
    }
    let cluster = fixture::cluster(2, &["tarn", "tarnd"], features, &[])?;
    let example = cluster.shared().join("example");
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(tree::root().join("examples/openfoam"))
        .arg(&example);
    run_for_output(&mut copy).unwrap_or_else(|e| panic!("{e:#}"));
    change(&example.join("cavity/system/size"), &SIZE);
    change(
        &example.join("workflow.toml"),
        &[("[data.fields] ", "[data.fields]\ndest = \"fields\" ")],
    );
    run(&cluster, "root", "chmod -R a+rX /shared/example");
    run(&cluster, "alice", "cp -r /shared/example foam");
    let folder = cluster.shared().join("home/alice/foam");
    Some((cluster, folder))
}

/// Replaces each first text by the second; it must be there.
fn change(path: &Path, changes: &[(&str, &str)]) {
    let mut text = std::fs::read_to_string(path).expect("a file of the example");
    for (from, to) in changes {
        assert!(text.contains(from), "{}: no `{from}`", path.display());
        text = text.replace(from, to);
    }
    std::fs::write(path, text).expect("the same file");
}

fn run(cluster: &Cluster, user: &str, script: &str) -> String {
    let output = cluster.exec(user, &["bash", "-c", script]);
    output.unwrap_or_else(|e| panic!("{e:#}"))
}

/// Every file below the folder, by its path there.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|e| panic!("{next:?}: {e}")) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("a path below").to_owned();
                found.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

fn assert_same(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) {
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(one), names(other));
    for (path, content) in one {
        assert!(content == &other[path], "{} differs", path.display());
    }
}

const RUN: &str = "tarn run --tier scm=/scm/$USER:64MiB workflow.toml";

/// The folders of the example after a run of tarn hold the files that OpenFOAM alone makes of the same case.
fn as_plain(cluster: &Cluster, folder: &Path, options: &str, tarn: &str) {
    // OpenFOAM writes the name of the case's folder into the files for VTK.
    run(cluster, "alice", "foam/plain.sh foam/cavity vtk");
    let output = run(
        cluster,
        "alice",
        &format!(
            "cd foam && salloc -Q {options} {tarn} 2>&1 || {{ tail -n 30 .tarn/runs/*/steps/solve*.log; exit 1; }}"
        ),
    );
    let plain = folder.with_file_name("vtk");
    let mut steps = files(&plain);
    steps.retain(|path, _| path.to_string_lossy().starts_with("0.0"));
    assert!(steps.len() >= 3 * 3, "{output}\n{:?}", steps.keys());
    assert_same(&steps, &files(&folder.join("fields")));
    let vtk = files(&plain.join("VTK"));
    assert!(vtk.len() >= 5, "{:?}", vtk.keys());
    assert_same(&vtk, &files(&folder.join("result")));
}

#[test]
fn mpirun_solves_on_two_nodes() {
    let Some((cluster, folder)) = cluster(&[]) else {
        return;
    };
    // More tasks than the step has on a node: its ranks are spread all the same.
    as_plain(&cluster, &folder, "-N2 -n16", RUN);
}

#[test]
fn srun_solves_on_two_nodes() {
    let Some((cluster, folder)) = cluster(&["pmix"]) else {
        return;
    };
    change(
        &folder.join("workflow.toml"),
        &[("\"solve.sh", "\"solve-srun.sh")],
    );
    // A rank that Debian's Open MPI has begun by PMIx dies now and then at address 0, with any program: a user who sees
    // that resumes.
    let again = format!("sh -c '{RUN} || tarn resume'");
    as_plain(&cluster, &folder, "-N2 --ntasks-per-node=2", &again);
}
