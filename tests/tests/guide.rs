//! docs/guide/inside-your-allocation.md, followed word for word by a user of a real Slurm.

use tarn_tests::desk;

const PAGE: &str = include_str!("../../docs/guide/inside-your-allocation.md");

/// The shell commands of the page, in order.
fn commands() -> String {
    let mut commands = String::from("set -e\n");
    for block in PAGE.split("\n```sh\n").skip(1) {
        let (block, _) = block.split_once("\n```").expect("the end of a block");
        commands.push_str(block);
        commands.push('\n');
    }
    commands
}

#[test]
fn the_page_works_when_followed_word_for_word() {
    let Some(cluster) = desk::cluster(2, &["tarn", "tarnd"], &[], &[]) else {
        return;
    };
    let said = cluster.exec("alice", &["bash", "-c", &commands()]);
    let said = said.unwrap_or_else(|e| panic!("{e:#}"));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&"6000"), "{said}");
    assert!(said.contains("0 run, 4 unchanged"), "{said}");
    for node in ["node1", "node2"] {
        assert!(lines.contains(&node), "{node}: {said}");
    }
}
