//! Names of runs.

mod common;

use common::{WALL, story, write};
use std::collections::BTreeSet;
use std::fs;
use tarn_journal::runs;
use tarn_types::layout::StateDir;

#[test]
fn names_count_on_and_are_taken_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir(dir.path().join("a/.tarn"));
    assert_eq!(runs::list(&state).unwrap(), []);
    assert_eq!(runs::newest(&state, None).unwrap(), None);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let state = state.clone();
            std::thread::spawn(move || {
                (0..5)
                    .map(|_| runs::allocate(&state, "w").unwrap())
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let names: BTreeSet<String> = threads
        .into_iter()
        .flat_map(|t| t.join().unwrap())
        .collect();
    let want: BTreeSet<String> = (1..=20).map(|n| format!("w-{n}")).collect();
    assert_eq!(names, want);
    assert_eq!(runs::allocate(&state, "w-1").unwrap(), "w-1-1");
    fs::remove_dir(state.run("w-7")).unwrap();
    assert_eq!(
        runs::allocate(&state, "w").unwrap(),
        "w-21",
        "a number is not used again below the highest"
    );
}

#[test]
fn the_newest_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir(dir.path().join(".tarn"));
    for (workflow, runs) in [("w", 10), ("v-2", 1)] {
        for _ in 0..runs {
            let run = runs::allocate(&state, workflow).unwrap();
            write(&state.log(&run), &story(&run, WALL));
        }
    }
    // Two files written in a row may have the same time.
    let last = fs::File::options().append(true).open(state.log("v-2-1"));
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    last.unwrap().set_modified(later).unwrap();
    runs::allocate(&state, "w").unwrap();
    for other in ["w-0", "w-01", "w", "w-x", "-3"] {
        fs::create_dir(state.run(other)).unwrap();
    }
    let name = |workflow| runs::newest(&state, workflow).unwrap().map(|r| r.name);
    assert_eq!(name(Some("w")).as_deref(), Some("w-10"), "w-11 has no log");
    assert_eq!(name(Some("v-2")).as_deref(), Some("v-2-1"));
    assert_eq!(name(Some("u")), None);
    assert_eq!(name(None).as_deref(), Some("v-2-1"), "written last");
    assert_eq!(runs::list(&state).unwrap().len(), 12);
    assert_eq!(runs::read(&state, "w-3").unwrap(), story("w-3", WALL));
    assert_eq!(
        runs::history(&state, "w-3").unwrap().start.unwrap().run,
        "w-3"
    );
    assert!(runs::read(&state, "w-99").unwrap_err().is_missing());
}
