//! The remains of a rank that has ended: a test program of its own, as it looks at all of the process.

mod common;

use common::{LONG, far_program, folder, program, until};
use tarn_ports::Ranks;

fn count(of: &str, which: impl Fn(&std::path::Path) -> bool) -> usize {
    let all = std::fs::read_dir(of).unwrap().flatten();
    all.filter(|one| which(&one.path())).count()
}

fn descriptors() -> usize {
    count("/proc/self/fd", |_| true)
}

fn threads() -> usize {
    let name = |task: &std::path::Path| std::fs::read_to_string(task.join("comm"));
    count("/proc/self/task", |t| {
        name(t).is_ok_and(|n| n.starts_with("tarn-rank"))
    })
}

#[test]
fn a_rank_that_has_ended_has_no_thread_no_descriptor_and_no_socket_in_its_folder() {
    let before = descriptors();
    for far in [false, true] {
        let folder = folder();
        let ranks = match far {
            false => program(folder.path(), 3),
            true => far_program(folder.path(), 3),
        };
        for rank in &ranks {
            rank.grant(2, 1, 1, LONG).unwrap_err();
        }
        // The line and the hub of each, and the thread that serves.
        assert!(threads() >= 3 && descriptors() > before + 12);
        drop(ranks);
        until("threads end", || threads() == 0);
        assert_eq!(descriptors(), before);
        let nodes = [folder.path(), &folder.path().join("node0")];
        let node = nodes[usize::from(far)];
        let left = std::fs::read_dir(node).unwrap().flatten();
        let left: Vec<_> = left.map(|f| f.file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| name.ends_with(".lock")), "{left:?}");
    }
}
