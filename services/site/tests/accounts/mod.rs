//! The sums of workflows, from what an accounting has of their jobs.

use crate::world::*;
use std::collections::BTreeMap;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, ControllerRequest, Stage, Uid, WorkflowUsageInfo};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::site::{Fate, JobResult};
use tarn_types::units::SECOND;
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::Role;

fn result(ready: u64, begun: u64, released: u64) -> JobResult {
    JobResult {
        submitted: ready * SECOND,
        ready: ready * SECOND,
        begun: begun * SECOND,
        released: released * SECOND,
        node_time: (released - begun) * SECOND,
        fate: Fate::Done,
        ..JobResult::default()
    }
}

fn runs(world: &World, user: Uid) -> Vec<WorkflowUsageInfo> {
    let ask = ControllerRequest::WorkflowUsage(0);
    match world.site.answer(user, &groups(user), false, &ask) {
        Some(ControllerReply::WorkflowUsage(runs)) => runs,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workflow_is_summed_up_from_the_accounting_of_jobs_that_have_left() {
    let mut world = World::new(2, Config::default());
    let mut made = dataset("made");
    let first = script("foam", 1, vec![(Role::Out, Single, made.clone())]);
    made.dest = Some("/lustre/made".into());
    let second = script("foam", 1, vec![(Role::Inout, Single, made)]);
    world.whole(1, first, &["n1"]);
    let wanted: Vec<_> = world.site.wanted_accounts();
    assert_eq!((wanted.len(), wanted[0].job, wanted[0].user), (1, 1, ALICE));
    let setup = Stage::Setup(Box::new(second.clone()));
    assert_eq!(world.staged(2, setup), ControllerReply::Done);
    let open = JobResult::default();
    let both = BTreeMap::from([(1, result(0, 10, 70)), (2, open), (9, result(0, 0, 1))]);
    let new = world.site.new_accounts(both);
    assert_eq!(
        new.keys().copied().collect::<Vec<_>>(),
        [1],
        "2 has not left, 9 is nobody's"
    );
    world.event(SiteServiceEvent::Accounted { jobs: new });
    assert!(!world.site.wants_accounts());
    world.pass(300);
    world.whole(2, second, &["n1"]);
    let jobs = BTreeMap::from([(2, result(70, 80, 100))]);
    assert!(world.site.new_accounts(jobs.clone()).len() == 1);
    world.event(SiteServiceEvent::Accounted { jobs });
    let run = runs(&world, ALICE).remove(0);
    assert!(!run.is_over, "nobody has ended it");
    assert_eq!(
        (run.queue, run.run, run.node_time),
        (20 * SECOND, 80 * SECOND, 80 * SECOND)
    );
    // Its result is outside later than its last job ends.
    assert!(run.time > 100 * SECOND, "{run:?}");
    crate::end(&mut world, "foam");
    world.pass(1);
    let run = runs(&world, ALICE).remove(0);
    assert_eq!((run.is_over, run.done, run.open), (true, 2, 0));
    let figures = world.site.figures();
    assert_eq!((figures.workflows.complete, figures.open_workflows), (1, 0));
    assert!(runs(&world, BOB).is_empty() && runs(&world, 0).len() == 1);
    world.check_replay(Config::default());
}

#[test]
fn only_root_learns_which_jobs_have_data_lines() {
    let mut world = World::new(1, Config::default());
    let made = script("w", 1, vec![(Role::Out, Single, dataset("made"))]);
    world.whole(7, made, &["n1"]);
    let ask = |user| {
        world
            .site
            .answer(user, &groups(user), false, &ControllerRequest::DataJobs)
    };
    let Some(ControllerReply::DataJobs { jobs, .. }) = ask(0) else {
        panic!("root is not answered");
    };
    assert_eq!(jobs, [7]);
    let Some(reply) = ask(ALICE) else {
        panic!("alice is not answered");
    };
    assert_eq!(refused(&reply).code, Code::Denied);
}
