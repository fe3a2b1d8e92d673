//! Large workflows: the decisions grow with the workflow, not with its square.

mod common;

use common::*;
use std::fmt::Write;
use tarn_types::action::Outcome;

/// Steps that do nothing; `chained`: each changes one dataset, one after the other.
fn steps(count: usize, chained: bool) -> String {
    let mut text = String::from("name = \"noop\"\n");
    if chained {
        text.push_str("[data.token]\n");
    }
    for i in 0..count {
        let data = match (chained, i) {
            (false, _) => "",
            (true, 0) => "out = [\"token\"]\n",
            (true, _) => "inout = [\"token\"]\n",
        };
        let _ = write!(text, "[[step]]\nname = \"s{i}\"\nrun = \"true\"\n{data}");
    }
    text
}

/// Records and actions that a run of so many steps takes on 4 nodes.
fn work(count: usize, chained: bool, name: &str) -> (usize, usize) {
    let workflow = workflow(&steps(count, chained));
    let start = start(workflow, cluster(4, 2, &[1000 * MB]), policy(name));
    let simulated = simulate(&start, estimates(10));
    assert_eq!(simulated.outcome, Outcome::Done);
    assert_eq!(simulated.runs().len(), count);
    (simulated.records.len(), simulated.actions().count())
}

/// Every step has its place, its start and its end recorded once, with any number waiting beside it.
#[test]
fn independent_steps_cost_the_same_however_many_there_are() {
    for name in ["data", "fcfs", "easy", "same-nodes", "heft+cache"] {
        let (few, many) = (work(250, false, name), work(2000, false, name));
        assert_eq!(many.0, 2000 + 1, "a record for each end, one for the start");
        assert!(
            many.1 * 250 <= few.1 * 2000 + 2000,
            "{name}: {few:?} {many:?}"
        );
        assert!(many.1 <= 4 * 2000, "{name}: {many:?}");
    }
}

#[test]
fn steps_of_a_chain_cost_the_same_however_long_it_is() {
    let (few, many) = (work(250, true, "data"), work(2000, true, "data"));
    // The end of a step, and the end of the version before.
    assert!(many.0 <= 2 * 2000 + 2, "{many:?}");
    assert!(many.1 * 250 <= few.1 * 2000 + 2000, "{few:?} {many:?}");
}
