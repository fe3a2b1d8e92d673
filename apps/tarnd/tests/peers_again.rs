//! Durable tasks between two tarnds outlive failures of the other one; others report them at once.

mod common;

use common::*;
use std::time::{Duration, Instant};
use tarn_client::Client;
use tarn_proto::local::*;

fn on_b(path: &str) -> TaskLocation {
    TaskLocation::Node {
        node: "b".into(),
        space: "fast".into(),
        path: path.as_bytes().into(),
    }
}

fn durable(task: TaskSpec) -> TaskSpec {
    TaskSpec {
        durable: true,
        ..task
    }
}

/// Slow enough to be disturbed.
fn slow(task: TaskSpec) -> TaskSpec {
    durable(TaskSpec {
        rate: 6_000_000,
        ..task
    })
}

fn state(client: &Client, id: TaskId) -> TaskStatus {
    client.status(&[id]).unwrap().remove(0)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The source's tarnd is killed in the middle: copied bytes stay, the task waits, and ends when that tarnd is there again.
#[test]
fn what_is_pulled_goes_on_after_the_source_was_killed() {
    let (a, mut b) = pair(&[]);
    let client = a.client();
    let bytes = content(12_000_000, 1);
    std::fs::write(b.path("fast/f"), &bytes).unwrap();
    std::fs::create_dir(b.path("fast/t")).unwrap();
    for n in 0..30 {
        std::fs::write(b.path(&format!("fast/t/{n}")), content(100_000, n)).unwrap();
    }
    let tasks = [
        slow(copy(on_b("f"), fast("f"))),
        slow(moved(on_b("t"), fast("t"))),
    ];
    let ids: Vec<TaskId> = client
        .submit(&tasks)
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    until("both move", || {
        ids.iter().all(|id| state(&client, *id).done > 500_000)
    });
    b.kill();
    until("both wait", || {
        ids.iter()
            .all(|id| state(&client, *id).state == TaskState::Waiting)
    });
    assert!(!a.leftovers().is_empty(), "what has come stays");
    // Longer than the first pauses.
    std::thread::sleep(Duration::from_millis(1200));
    assert!(
        ids.iter()
            .all(|id| state(&client, *id).state != TaskState::Failed)
    );
    b.again();
    for id in &ids {
        assert_eq!(wait(&client, *id).end, TaskEnd::Done);
    }
    assert_eq!(read(&a.path("fast/f")), bytes);
    assert_eq!(read(&a.path("fast/t/29")), content(100_000, 29));
    assert!(!b.path("fast/t").exists());
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
}

/// A node that is not there when a task is handed over, or when its content is listed: the waiting task may be cancelled.
#[test]
fn a_node_that_is_not_there_is_waited_for() {
    let (a, mut b) = pair(&[]);
    let client = a.client();
    std::fs::write(a.path("fast/f"), content(100_000, 1)).unwrap();
    std::fs::write(b.path("fast/g"), content(8_000_000, 2)).unwrap();
    let pulled = submit(&client, slow(copy(on_b("g"), fast("half")))).unwrap();
    until("it moves", || state(&client, pulled).done > 500_000);
    b.kill();
    for task in [copy(fast("f"), on_b("f")), copy(on_b("g"), fast("g"))] {
        let TaskEnd::Failed(why) = run(&client, task).end else {
            panic!("there is nobody")
        };
        assert!(
            why.code == Code::Io && !why.text.contains("kept"),
            "{why:?}"
        );
    }
    let tasks = [
        moved(fast("f"), on_b("f")),
        copy(on_b("g"), fast("g")),
        copy(on_b("g"), fast("never")),
    ];
    let ids = client.submit(&tasks.map(durable)).unwrap();
    let ids: Vec<TaskId> = ids.into_iter().map(Result::unwrap).collect();
    until("they wait", || {
        let waits = |id: &TaskId| state(&client, *id).state == TaskState::Waiting;
        ids.iter().all(waits) && waits(&pulled)
    });
    client.cancel(&[pulled, ids[2]]).unwrap();
    for id in [pulled, ids[2]] {
        assert_eq!(code(&wait(&client, id)), Some(Code::Cancelled));
    }
    until("what had come is removed", || a.leftovers().is_empty());
    // Their slots are free: others of this node are not held up.
    assert_eq!(
        run(&client, copy(a.outside("fast/f"), fast("own"))).end,
        TaskEnd::Done
    );
    b.again();
    for id in &ids[..2] {
        assert_eq!(wait(&client, *id).end, TaskEnd::Done);
    }
    assert_eq!(read(&b.path("fast/f")), content(100_000, 1));
    assert!(!a.path("fast/f").exists());
    assert_eq!(read(&a.path("fast/g")), content(8_000_000, 2));
    assert!(!a.path("fast/never").exists());
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
}
