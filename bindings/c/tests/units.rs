//! C programs that change the same units of a disk at the same time, and are killed.

mod common;

use common::{compiler, output_of};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A folder of the disk where the tests' own files are, with the program and a partition in units of 8 KiB.
fn begun() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("units");
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    output_of(&mut compiler("cc", &flags, &["tests/units.c"], &program));
    output_of(&mut command_of(folder.path(), &["make", "8192"]));
    folder
}

fn command_of(folder: &Path, what: &[&str]) -> Command {
    let mut command = Command::new(folder.join("units"));
    command.arg(folder.join("field")).args(what);
    command
}

fn neighbour(folder: &Path, number: usize, turns: usize) -> Child {
    let (number, turns) = (number.to_string(), turns.to_string());
    let mut command = command_of(folder, &["neighbour", &number, &turns]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// The counter, and the words of neighbours.
fn words(folder: &Path) -> Vec<u64> {
    let text = output_of(&mut command_of(folder, &["show", "4"]));
    let (words, unit) = text.split_once("of ").unwrap();
    assert_eq!(unit, "8192\n");
    words
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn programs_that_change_neighbours_in_a_unit_lose_nothing() {
    let folder = begun();
    let all: Vec<Child> = (1..4)
        .map(|number| neighbour(folder.path(), number, 40))
        .collect();
    for child in all {
        let out = child.wait_with_output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
    }
    assert_eq!(words(folder.path()), [120, 40, 40, 40]);
}

#[test]
fn a_program_that_is_killed_in_the_middle_keeps_nobody_from_its_unit() {
    let folder = begun();
    let mut completed = 0;
    for round in 0..10_usize {
        // Two are at it when the first is killed, after some turns and some time.
        let mut killed = neighbour(folder.path(), 1, 1_000_000);
        let lives = neighbour(folder.path(), 2, 10);
        let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
        let first: Vec<_> = lines.by_ref().take(round % 3 + 1).collect();
        assert_eq!(first.len(), round % 3 + 1);
        std::thread::sleep(Duration::from_micros(round as u64 * 170));
        killed.kill().unwrap();
        killed.wait().unwrap();
        let reported = lines
            .map_while(Result::ok)
            .last()
            .map_or(first.len() as u64, |last| last.parse().unwrap());
        let out = lives.wait_with_output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
        let words = words(folder.path());
        assert!(
            (reported..=reported + 1).contains(&words[1]),
            "{reported} {words:?}"
        );
        assert_eq!(words[2], 10);
        // None of the reported changes is lost, and at most those under way are added.
        completed += 10 + reported;
        let under_way = 1 + round as u64;
        assert!(
            (completed..=completed + under_way).contains(&words[0]),
            "{completed} {words:?}"
        );
    }
}
