//! Results that go outside.

use crate::world::*;
use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, JobSubmission, Stage};
use tarn_site::Config;
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::Role;

/// A script that makes `x`, which goes to this place.
fn delivers(workflow: &str, to: &str) -> JobSubmission {
    let mut result = dataset("x");
    result.dest = Some(to.into());
    script(workflow, 1, vec![(Role::Out, Single, result)])
}

#[test]
fn a_result_waits_for_its_node_whose_tarnd_begins_anew() {
    let mut world = World::new(2, Config::default());
    let job = delivers("w", "s3://b/x/");
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(job))),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    let published = world.staged(1, Stage::PostRun { ok: true });
    assert_eq!(published, ControllerReply::Done);
    // It ends in the middle of the delivery.
    let token = world.stage(1, Stage::DataOut);
    assert!(!world.queue.is_empty());
    world.queue.clear();
    world.close("n1");
    world.pass(30);
    assert_eq!(world.answers.get(&token), None);
    world.open("n1");
    world.settle();
    assert_eq!(world.answers[&token], ControllerReply::Done);
    assert_eq!(world.owners[Path::new("s3://b/x/")], "site u1000 w x");
    world.check_replay(Config::default());
    // One that does not come back is waited for a minute.
    world.close("n1");
    let job = delivers("v", "s3://b/y/");
    assert_eq!(
        world.staged(2, Stage::Setup(Box::new(job))),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(2, &["n2"]), ControllerReply::Done);
    let published = world.staged(2, Stage::PostRun { ok: true });
    assert_eq!(published, ControllerReply::Done);
    world.close("n2");
    let token = world.stage(2, Stage::DataOut);
    world.pass(61);
    assert_eq!(refused(&world.answers[&token]).code, Code::Lost);
}

#[test]
fn the_next_job_of_a_script_without_a_name_may_replace_what_the_first_has_put() {
    let mut world = World::new(1, Config::default());
    for job in [1, 2] {
        let mut script = delivers("job", "s3://b/x/");
        script.is_alone = true;
        world.whole(job, script, &["n1"]);
        assert_eq!(world.owners[Path::new("s3://b/x/")], "site u1000 job x");
    }
}

#[test]
fn a_job_whose_result_may_not_go_where_it_belongs_does_not_begin() {
    let mut world = World::new(1, Config::default());
    world.whole(1, delivers("w", "/lustre/x"), &["n1"]);
    // The next one of the same workflow may replace it, another workflow's may not.
    world.whole(2, delivers("w", "/lustre/x"), &["n1"]);
    let other = delivers("v", "/lustre/x");
    assert_eq!(
        world.staged(3, Stage::Setup(Box::new(other))),
        ControllerReply::Done
    );
    let reply = world.pre_run(3, &["n1"]);
    let why = refused(&reply);
    assert_eq!(why.code, Code::Exists, "{}", why.text);
    assert_eq!(world.owners[Path::new("/lustre/x")], "site u1000 w x");
    // When it has been moved away, the job begins.
    world.owners.clear();
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
}
