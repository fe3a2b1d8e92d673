//! The tables of research/results.md with the claims of experiments are the output of `tarn reproduce --render --markdown` for
//! the results that are kept in research/evidence.

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

/// The section of each table, the kept results, and how many lines it has at least.
const TABLES: [(&str, &str, usize); 2] = [
    ("\n## The papers' experiments\n", "results.json", 20),
    (
        "\n## On a site: Table 4 and a mixed day on a real Slurm\n",
        "slurm.json",
        10,
    ),
];

#[test]
fn the_tables_are_what_was_measured() {
    let root = tree::root();
    let document = std::fs::read_to_string(root.join("research/results.md")).expect("the results");
    for (heading, file, least) in TABLES {
        let (_, section) = document.split_once(heading).expect(heading);
        let there = table(section, BEGINS);
        assert!(there.len() > least, "{heading} has no table of claims");
        let printed = Command::new(programs::built("tarn").expect("tarn"))
            .args(["reproduce", "--markdown", "--render"])
            .arg(root.join("research/evidence").join(file))
            .output()
            .expect("tarn starts");
        let stderr = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success(), "{stderr}");
        let printed = String::from_utf8(printed.stdout).expect("UTF-8");
        assert_eq!(
            there,
            printed.lines().collect::<Vec<_>>(),
            "put what `tarn reproduce --render research/evidence/{file} --markdown` prints into research/results.md"
        );
    }
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
