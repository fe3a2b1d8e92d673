//! The table of research/results.md with the papers' claims is the output of `tarn reproduce --render --markdown` for
//! research/evidence/results.json.

use std::process::Command;
use tarn_tests::{programs, tree};

/// The lines of the table of a document whose first columns are these.
fn table<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
    text.lines()
        .skip_while(|line| !line.starts_with(begins))
        .take_while(|line| line.starts_with('|'))
        .collect()
}

const BEGINS: &str = "| experiment | claim |";

#[test]
fn the_table_is_what_was_measured() {
    let root = tree::root();
    let document = std::fs::read_to_string(root.join("research/results.md")).expect("the results");
    let there = table(&document, BEGINS);
    assert!(
        there.len() > 20,
        "research/results.md has no table of claims"
    );
    let kept = root.join("research/evidence/results.json");
    let printed = Command::new(programs::built("tarn").expect("tarn"))
        .args(["reproduce", "--markdown", "--render"])
        .arg(&kept)
        .output()
        .expect("tarn starts");
    let stderr = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{stderr}");
    let printed = String::from_utf8(printed.stdout).expect("UTF-8");
    assert_eq!(
        there,
        printed.lines().collect::<Vec<_>>(),
        "put what `tarn reproduce --render research/evidence/results.json --markdown` prints into research/results.md"
    );
}

#[test]
fn a_table_is_found() {
    let text = "words\n\n| a |\n\n| experiment | claim | x |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n\n| other |\n";
    let found = [
        "| experiment | claim | x |",
        "| --- | --- | --- |",
        "| 1 | 2 | 3 |",
    ];
    assert_eq!(table(text, BEGINS), found);
}
