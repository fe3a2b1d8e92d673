//! C programs whose connections are inherited by forked children, and used by many threads.

mod common;
#[path = "../../../bindings/c/tests/common/mod.rs"]
#[allow(dead_code)]
mod linked;
#[path = "../../../bindings/c/tests/common/sanitized.rs"]
mod sanitized;

use common::Daemon;
use linked::{compiler, output_of};
use sanitized::{each_build, goes_well};

/// A child is refused every call with its parent's connection, in any state of its parent's threads, and does not touch its
/// parent's tasks, regions and answers.
#[test]
fn attack_children_and_threads_share_a_connection() {
    let mut daemon = Daemon::start(&[]);
    let file = daemon.path("file");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    each_build(
        "tests/forks_tasks.c",
        daemon.dir.path(),
        |mut command, _, mode| {
            command.env("TARN_SOCKET", daemon.socket());
            goes_well(command.arg(&file).arg(mode));
        },
    );
    assert!(daemon.terminate().success());
    assert_eq!(daemon.leftovers(), Vec::<std::path::PathBuf>::new());
}
