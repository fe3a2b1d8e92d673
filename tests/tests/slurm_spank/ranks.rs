//! Ranks of MPI programs in a job of a site, by each launcher: each has the data of the node that it is on.

use crate::site::{ALICE, Site, text};
use std::process::Command;
use tarn_tests::slurm::Doctor;
use tarn_tests::tree;

/// The parts of ranks 0 and 1 are on the first node of a job of two, those of 2 and 3 on the second.
const PARTS: &str = "set -e
    cd /scm/tarn/u7001/j/1/fields
    for rank in RANKS; do install -d -o alice p$rank; echo $rank > p$rank/n; rm -f p$rank/done; done";

/// The launchers of an MPI that are here, with the program that they start.
fn launchers(site: &Site, mpi: &str) -> Vec<String> {
    let mut compiler = Command::new(format!("mpicc.{mpi}"));
    let program = site.shared(&format!("ranks.{mpi}"));
    compiler.arg("-o").arg(&program);
    compiler.arg(tree::root().join("tests/tests/mpi/ranks.c"));
    let Ok(status) = compiler.status() else {
        eprintln!("SKIPPED: no mpicc.{mpi} here: scripts/deps.sh test installs it");
        return Vec::new();
    };
    assert!(status.success(), "mpicc.{mpi}: {status}");
    let program = format!("/shared/ranks.{mpi}");
    let (own, how) = match mpi {
        "openmpi" => ("mpirun.openmpi --map-by ppr:2:node", "pmix"),
        _ => ("mpiexec.mpich -n 4 -ppn 2", "pmi2"),
    };
    let mut all = vec![format!("{own} {program}")];
    match Doctor::ask().expect("a doctor").lacks(&[how]) {
        Some(why) => eprintln!("SKIPPED: srun --mpi={how}: {why}"),
        None => all.push(format!("srun --mpi={how} {program}")),
    }
    all
}

#[test]
fn ranks_of_mpi_programs_have_the_data_of_their_node() {
    let Some(site) = Site::up(2, "tmpfs", "required") else {
        return;
    };
    let file = text(ALICE, &["rw case u7001 u7001/j/1/fields"]);
    // By this machine's boot, UCX takes the cluster's nodes for one.
    let options = ["-N2", "-n4", "--ntasks-per-node=2", "--mem=450"];
    for mpi in ["openmpi", "mpich"] {
        for launch in launchers(&site, mpi) {
            for (node, ranks) in [(1, "0 1"), (2, "2 3")] {
                site.root(node, &PARTS.replace("RANKS", ranks));
            }
            let script = format!("export UCX_TLS=tcp,self; {launch}");
            let output = site.run("alice", Some(&file), &options, &script);
            for (node, ranks) in [(1, [0, 1]), (2, [2, 3])] {
                for rank in ranks {
                    let done = format!("cat /scm/tarn/u7001/j/1/fields/p{rank}/done");
                    let wanted = format!("node{node} node{node} 4");
                    assert_eq!(site.root(node, &done), wanted, "{launch}: {output}");
                }
            }
        }
    }
    for node in 1..=2 {
        site.nothing_is_left(node);
    }
}
