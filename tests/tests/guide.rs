//! Pages of docs/guide, followed word for word: by a user of a real Slurm, and on this machine.

use std::process::Command;
use tarn_tests::{fixture, pages, programs, tree};

const ALLOCATION: &str = include_str!("../../docs/guide/inside-your-allocation.md");
const FIRST_HOUR: &str = include_str!("../../docs/guide/first-hour.md");

/// The shell commands of a page, in order.
fn commands(page: &str) -> String {
    let mut blocks = pages::blocks(page);
    blocks.retain(|block| block.label == "sh");
    let texts = blocks.into_iter().map(|block| block.text);
    std::iter::once("set -e\n".to_owned())
        .chain(texts)
        .collect()
}

#[test]
fn the_page_works_when_followed_word_for_word() {
    let Some(cluster) = fixture::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let output = cluster.exec("alice", &["bash", "-c", &commands(ALLOCATION)]);
    let output = output.unwrap_or_else(|e| panic!("{e:#}"));
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.contains(&"6000"), "{output}");
    assert!(output.contains("0 run, 4 unchanged"), "{output}");
    for node in ["node1", "node2"] {
        assert!(lines.contains(&node), "{node}: {output}");
    }
}

#[test]
fn the_first_hour_works_when_followed_word_for_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = programs::built("tarn").expect("tarn");
    let bin = bin.parent().expect("its folder").display();
    let path = std::env::var("PATH").expect("a PATH");
    let ended = Command::new("bash")
        .args(["-c", &commands(FIRST_HOUR)])
        .current_dir(folder.path())
        .env("PATH", format!("{bin}:{path}"))
        .env("TARN_SOURCE", tree::root())
        .output()
        .expect("bash");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stdout}\n{errors}");
    // The results and their commands, in the page's order.
    let results: Vec<&str> = stdout
        .lines()
        .filter(|line| line.parse::<u32>().is_ok() || line.starts_with("steps "))
        .collect();
    let wanted = [
        "steps     4 run",
        "steps     4 run",
        "6000",
        "steps     0 run, 4 unchanged",
        "steps     2 run, 3 unchanged",
        "10000",
        "steps     0 run, 4 unchanged, 1 failed",
        "steps     1 run, 4 unchanged",
        "10000",
        "steps     2 run",
        "steps     2 run",
    ];
    assert_eq!(results, wanted, "{stdout}\n{errors}");
    assert!(stdout.contains("it failed, as it should"), "{stdout}");
    let left = std::fs::read_dir(folder.path()).expect("the folder");
    assert_eq!(left.count(), 0);
}
