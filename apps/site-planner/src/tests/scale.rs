//! A large cluster. `cargo test --release -p tarn-site-planner scale -- --nocapture` prints how long it takes.

use super::*;
use std::time::Instant;

const NODES: usize = 100_000;
const RUNNING: u32 = 5_000;
const WAITING: u32 = 5_000;

#[test]
fn a_hundred_thousand_nodes_are_seen() {
    let empty = cluster(NODES);
    let names: Vec<String> = empty.nodes.keys().cloned().collect();
    // On nine nodes of ten.
    let each = NODES * 9 / 10 / RUNNING as usize;
    let has = (1..=RUNNING).zip(names.chunks(each)).map(|(number, has)| {
        let job = running(
            waiting(number, each as u32),
            &[],
            START - u64::from(number % 900),
        );
        SlurmJob {
            nodes: Arc::from(has),
            min_nodes: each as u32,
            ..job
        }
    });
    let waits = (RUNNING + 1..=RUNNING + WAITING).map(|number| SlurmJob {
        user: 1000 + number % 200,
        ..waiting(number, 1 + number % 64)
    });
    let mut snapshot = with(empty.clone(), has.chain(waits).collect());
    let view = PlanningView::default();
    let mut planner = planner();
    let mut see = |what: &str, snapshot: &SlurmSnapshot| {
        let began = Instant::now();
        let seen = planner.see(snapshot, &view, snapshot.read_at * SECOND);
        println!("{what}: {:?}", began.elapsed());
        assert_eq!(seen.refused, Vec::<String>::new());
        seen
    };
    assert_eq!(see("built", &snapshot).transitions.len(), RUNNING as usize);
    snapshot.read_at += 5;
    assert_eq!(see("the same again", &snapshot).rebuilt, None);
    snapshot.jobs.retain(|number, _| *number > 20);
    snapshot.read_at += 5;
    let seen = see("20 jobs ended", &snapshot);
    assert_eq!((seen.rebuilt, seen.transitions.len()), (None, 20));
    let began = Instant::now();
    let plan = planner.plan(3600 * SECOND);
    println!(
        "plan of an hour: {:?}, {} jobs",
        began.elapsed(),
        plan.jobs.len()
    );
    assert!(plan.jobs.len() > RUNNING as usize);
}
