//! The controller's records of jobs that have ended.

use crate::world::*;
use tarn_proto::site::{ControllerReply, ControllerRequest, JobDataRecord, Stage};
use tarn_site::Config;
use tarn_types::units::SECOND;
use tarn_types::workflow::Distribution::{Broadcast, Single};
use tarn_types::workflow::Role;

fn records(world: &World, user: u32, trusted: bool) -> Vec<JobDataRecord> {
    let ask = ControllerRequest::Records { since: 0, from: 0 };
    let reply = world.site.answer(user, &groups(user), trusted, &ask);
    match reply.expect("an answer") {
        ControllerReply::Records {
            records,
            next: None,
        } => records,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_data_of_jobs_is_remembered_when_they_are_forgotten() {
    let mut world = World::new(3, Config::default());
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    let mut result = dataset("result");
    result.dest = Some("/lustre/result".into());
    let fields = dataset("fields");
    let make = script(
        "foam",
        1,
        vec![
            (Role::In, Single, case),
            (Role::Out, Single, fields.clone()),
        ],
    );
    let draw = script(
        "foam",
        2,
        vec![(Role::In, Broadcast, fields), (Role::Out, Single, result)],
    );
    world.pass(100);
    world.whole(1, make, &["n1"]);
    world.pass(50);
    world.whole(2, draw, &["n2", "n3"]);
    let all = records(&world, 0, true);
    let [first, second] = &all[..] else {
        panic!("{all:?}");
    };
    let size = world.size;
    assert_eq!(
        (first.job, first.user, &*first.workflow),
        (1, ALICE, "foam")
    );
    assert_eq!(first.read_outside.bytes, size);
    assert_eq!(first.reads[0].bytes, size);
    assert!(!first.reads[0].is_whole && !first.writes[0].keep);
    assert!(first.taken_in >= 100 * SECOND && first.began >= first.taken_in);
    assert!(first.fetched >= first.began && first.ended >= first.fetched);
    // The second one fetches from the first one's node, to both of its own, and writes outside.
    assert_eq!(second.reads[0].version, first.writes[0].version);
    assert_eq!(second.reads[0].dataset, "fields");
    assert!(second.reads[0].is_whole && second.writes[0].keep);
    assert_eq!(second.read_outside.bytes, 0);
    assert_eq!(second.between_nodes.bytes, 2 * second.reads[0].bytes);
    assert!(second.written_outside.bytes > 0 && second.delivered >= second.ended);
    assert!(second.began >= first.ended + 50 * SECOND);
    // A day later the jobs are forgotten, their records are not; others see only their own.
    world.pass(2 * 24 * 3600);
    assert_eq!(records(&world, 0, true), all);
    assert_eq!(records(&world, ALICE, false), all);
    assert_eq!(records(&world, BOB, false), []);
    let late = ControllerRequest::Records {
        since: 1 << 60,
        from: 0,
    };
    let none = world.site.answer(0, &[], true, &late);
    assert!(matches!(none, Some(ControllerReply::Records { records, .. }) if records.is_empty()));
    world.check_replay(Config::default());
}

#[test]
fn a_job_that_never_ran_leaves_no_record() {
    let mut world = World::new(1, Config::default());
    let job = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    let setup = Stage::Setup(Box::new(job));
    assert_eq!(world.staged(1, setup), ControllerReply::Done);
    let over = Stage::Teardown { hurry: true };
    assert_eq!(world.staged(1, over), ControllerReply::Done);
    assert_eq!(records(&world, 0, true), []);
}
