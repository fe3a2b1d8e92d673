//! The way of jobs over a site.

mod access;
mod accounts;
mod ahead;
mod checkpoints;
mod data;
mod exported;
mod levels;
mod order;
mod outside;
mod records;
mod sealed;
mod slices;
mod world;

use std::path::Path;
use tarn_proto::local::Code;
use tarn_proto::site::{
    Chain, ControllerReply, ControllerRequest, JobSubmission, Owner, Stage, StoreCapacity, Work,
};
use tarn_site::{Config, SiteServiceEvent};
use tarn_types::energy::{Draw, Power, Source};
use tarn_types::units::SECOND;
use tarn_types::workflow::Distribution::{Broadcast, Scatter, Shared, Single};
use tarn_types::workflow::{Foreach, Keep, OnFailure, Role};
use world::*;

fn end(world: &mut World, workflow: &str) {
    let ask = ControllerRequest::End {
        user: ALICE,
        workflow: workflow.into(),
    };
    let token = world.ask_as(ALICE, false, ask);
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
}

/// Weiland 2018, figures 3 to 5: decompose, solve, reconstruct.
#[test]
fn a_workflow_of_three_jobs_reads_and_writes_outside_once() {
    let mut world = World::new(4, Config::default());
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    let mut fields = dataset("fields");
    fields.scatter = Some(rule());
    let mut result = dataset("result");
    result.dest = Some("/lustre/result".into());
    let decompose = script(
        "foam",
        1,
        vec![
            (Role::In, Single, case),
            (Role::Out, Single, fields.clone()),
        ],
    );
    let solve = script("foam", 2, vec![(Role::Inout, Scatter, fields.clone())]);
    let reconstruct = script(
        "foam",
        1,
        vec![(Role::In, Single, fields), (Role::Out, Single, result)],
    );
    // Both are known before anything is made; the second one is advised again when it is.
    let setup = |job: &JobSubmission| Stage::Setup(Box::new(job.clone()));
    assert_eq!(world.staged(1, setup(&decompose)), ControllerReply::Done);
    assert_eq!(world.staged(2, setup(&solve)), ControllerReply::Done);
    assert_eq!(world.advices[&2].after, [1]);
    assert!(world.advices[&2].prefer.is_empty());
    world.whole(1, decompose, &["n1"]);
    assert_eq!(world.advices[&2].prefer, ["n1"]);
    assert!(world.advices[&2].after.is_empty());
    world.whole(2, solve, &["n1", "n2"]);
    world.whole(3, reconstruct, &["n2"]);
    assert_eq!(world.read[Path::new("/lustre/case")], world.size);
    assert_eq!(world.read.len(), 1);
    assert_eq!(world.sent.len(), 1);
    assert_eq!(
        world.parts_on("n2"),
        ["fields/2.0", "fields/2.1", "result/1.0"]
    );
    // It stays until the workflow's end is named, then nothing is left.
    end(&mut world, "foam");
    for node in ["n1", "n2", "n3", "n4"] {
        let store = &world.nodes[node];
        assert!(store.parts.is_empty() && store.jobs.is_empty() && store.admitted.is_empty());
    }
    world.check_replay(Config::default());
}

/// A workflow that is known by numbers of jobs: Slurm reports each job when the one before it is over.
#[test]
fn a_chain_goes_on_where_its_first_job_was_and_ends_with_its_last() {
    let mut world = World::new(3, Config::default());
    let link = |prior, is_end, same_nodes, others: &[u32]| Chain {
        prior,
        is_end,
        same_nodes,
        others: others.to_vec(),
    };
    let chained = |name: &str, chain, data| {
        let mut script = script(name, 1, data);
        script.is_alone = true;
        script.chain = Some(chain);
        script
    };
    let x = || dataset("x");
    let first = |others: &[u32]| {
        let link = link(None, false, false, others);
        chained("start", link, vec![(Role::Out, Single, x())])
    };
    let second = chained(
        "on",
        link(Some(1), false, true, &[]),
        vec![(Role::Inout, Single, x())],
    );
    let last = chained(
        "last",
        link(Some(2), true, false, &[]),
        vec![(Role::In, Single, x())],
    );
    world.whole(1, first(&[2, 3]), &["n2"]);
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    // Another user's job does not get in, nor one of another name, nor one after a job that is none.
    let mut stranger = second.clone();
    stranger.user += 1;
    let mut named = second.clone();
    named.is_alone = false;
    let mut lost = second.clone();
    lost.chain = Some(link(Some(77), false, false, &[]));
    for (number, (job, expected)) in [(stranger, "else's"), (named, "`name`"), (lost, "not known")]
        .into_iter()
        .enumerate()
    {
        let reply = world.staged(50 + number as u32, Stage::Setup(Box::new(job)));
        assert!(refused(&reply).text.contains(expected), "{reply:?}");
    }
    world.whole(2, second, &["n2"]);
    assert_eq!(world.advices[&2].require, ["n2"]);
    world.whole(3, last, &["n3"]);
    for node in ["n1", "n2", "n3"] {
        assert!(world.parts_on(node).is_empty(), "{node}");
    }
    // One that is cancelled before it was taken in is waited for no longer.
    world.whole(10, first(&[12, 13]), &["n1"]);
    assert_eq!(world.parts_on("n1"), ["x/1.0"]);
    for job in [12, 13] {
        world.staged(job, Stage::Teardown { hurry: false });
    }
    assert!(world.parts_on("n1").is_empty());
    world.check_replay(Config::default());
}

#[test]
fn what_several_nodes_lack_is_read_outside_once() {
    let mut world = World::new(4, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let read = script("w", 4, vec![(Role::In, Broadcast, mesh)]);
    world.whole(1, read, &["n1", "n2", "n3", "n4"]);
    assert_eq!(world.read[Path::new("/lustre/mesh")], world.size);
    for node in ["n1", "n2", "n3", "n4"] {
        assert_eq!(world.parts_on(node), ["mesh/0.0"]);
    }
}

#[test]
fn a_source_that_has_changed_is_read_anew_and_not_under_a_job_that_has_it() {
    let mut world = World::new(2, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let read = || script("w", 1, vec![(Role::In, Single, mesh.clone())]);
    world.whole(1, read(), &["n1"]);
    // It is unchanged: not read again, on any node.
    world.whole(2, read(), &["n2"]);
    assert_eq!(world.read[Path::new("/lustre/mesh")], world.size);
    assert_eq!(
        world.staged(3, Stage::Setup(Box::new(read()))),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    world.changes.insert("/lustre/mesh".into(), 1);
    assert_eq!(
        world.staged(4, Stage::Setup(Box::new(read()))),
        ControllerReply::Done
    );
    let reply = world.pre_run(4, &["n2"]);
    assert!(refused(&reply).text.contains("job 3"), "{reply:?}");
    for stage in [
        Stage::PostRun { ok: true },
        Stage::Teardown { hurry: false },
    ] {
        assert_eq!(world.staged(3, stage), ControllerReply::Done);
    }
    assert_eq!(world.pre_run(4, &["n2"]), ControllerReply::Done);
    assert_eq!(world.parts_on("n2"), ["mesh/0.1"]);
    assert!(world.parts_on("n1").is_empty());
    assert_eq!(world.read[Path::new("/lustre/mesh")], 2 * world.size);
}

#[test]
fn a_job_array_reads_but_makes_nothing() {
    let mut world = World::new(1, Config::default());
    let mut array = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    array.workflow.steps[0].foreach = Some(Foreach::Values(vec!["1".into()]));
    let reply = world.staged(1, Stage::Setup(Box::new(array)));
    assert_eq!(refused(&reply).code, Code::Unsupported);
}

#[test]
fn a_script_without_a_workflows_name_leaves_nothing_behind() {
    let mut world = World::new(1, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let mut alone = script("w", 1, vec![(Role::In, Single, mesh)]);
    alone.is_alone = true;
    world.whole(1, alone.clone(), &["n1"]);
    assert!(world.parts_on("n1").is_empty());
    // The second run of the same script reads it again: the source may have changed.
    world.whole(2, alone, &["n1"]);
    assert_eq!(world.read[Path::new("/lustre/mesh")], 2 * world.size);
}

#[test]
fn what_a_site_cannot_do_yet_is_refused_and_not_left_out() {
    let mut world = World::new(1, Config::default());
    let shared = script("v", 2, vec![(Role::Out, Shared, dataset("x"))]);
    let reply = world.staged(1, Stage::Setup(Box::new(shared)));
    assert_eq!(refused(&reply).code, Code::Unsupported);
}

#[test]
fn what_nobody_makes_is_refused_and_what_is_not_made_yet_too() {
    let mut world = World::new(1, Config::default());
    let reads = script("w", 1, vec![(Role::In, Single, dataset("x"))]);
    let reply = world.staged(1, Stage::Setup(Box::new(reads.clone())));
    assert_eq!(refused(&reply).code, Code::NotFound);
    assert!(refused(&reply).text.contains("nobody makes"));
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    assert_eq!(
        world.staged(2, Stage::Setup(Box::new(makes))),
        ControllerReply::Done
    );
    assert_eq!(
        world.staged(3, Stage::Setup(Box::new(reads))),
        ControllerReply::Done
    );
    let reply = world.pre_run(3, &["n1"]);
    assert_eq!(refused(&reply).code, Code::Dependency);
    assert!(refused(&reply).text.contains("job 2"), "{reply:?}");
    // The maker fails: its reader gets its name.
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    assert_eq!(
        world.staged(2, Stage::PostRun { ok: false }),
        ControllerReply::Done
    );
    let reply = world.pre_run(3, &["n1"]);
    assert!(refused(&reply).text.contains("job 2 failed"), "{reply:?}");
    // Slurm runs it again, and it succeeds.
    assert_eq!(
        world.staged(2, Stage::Teardown { hurry: false }),
        ControllerReply::Done
    );
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(2, makes, &["n1"]);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
}

#[test]
fn a_node_that_fails_three_times_fails_the_gate_and_the_next_try_begins_anew() {
    let mut world = World::new(2, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let read = script("w", 1, vec![(Role::In, Single, mesh)]);
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(read))),
        ControllerReply::Done
    );
    world.refuses = Some((|w| matches!(w, Work::Fetch { .. }), Code::Io));
    let reply = world.pre_run(1, &["n1"]);
    assert_eq!(refused(&reply).code, Code::Io);
    assert!(refused(&reply).text.starts_with("n1: "), "{reply:?}");
    world.refuses = None;
    assert_eq!(
        world.staged(1, Stage::Teardown { hurry: false }),
        ControllerReply::Done
    );
    let Some(ControllerReply::Job(job)) =
        world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Job(1))
    else {
        panic!("no job");
    };
    assert_eq!(job.phase, "ended");
    assert!(job.history.iter().any(|(_, what)| what.starts_with("n1: ")));
}

#[test]
fn a_controller_that_begins_anew_goes_on() {
    let mut world = World::new(2, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let read = script("w", 2, vec![(Role::In, Broadcast, mesh)]);
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(read))),
        ControllerReply::Done
    );
    let nodes = vec!["n1".to_owned(), "n2".to_owned()];
    world.stage(1, Stage::PreRun(nodes.clone()));
    // It dies with an order under way; both nodes are back a moment later, and Slurm's script repeats the request.
    assert!(!world.queue.is_empty());
    world.queue.clear();
    world.event(tarn_site::SiteServiceEvent::began(2));
    let token = world.stage(1, Stage::PreRun(nodes));
    assert_eq!(world.answers.get(&token), None);
    world.open("n1");
    world.open("n2");
    world.settle();
    assert_eq!(world.answers.get(&token), Some(&ControllerReply::Done));
    world.check_replay(Config::default());
}

#[test]
fn what_was_on_a_node_that_is_lost_is_told_to_who_reads_it() {
    let mut world = World::new(2, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    let reads = script("w", 1, vec![(Role::In, Single, dataset("x"))]);
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(makes))),
        ControllerReply::Done
    );
    assert_eq!(
        world.staged(2, Stage::Setup(Box::new(reads))),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    world.close("n1");
    let token = world.stage(1, Stage::PostRun { ok: true });
    world.pass(61);
    assert_eq!(world.answers[&token], ControllerReply::Done);
    let reply = world.pre_run(2, &["n2"]);
    assert!(
        refused(&reply).text.contains("node n1 does not answer"),
        "{reply:?}"
    );
}

#[test]
fn a_node_is_waited_for_a_minute() {
    let mut world = World::new(2, Config::default());
    let mut mesh = dataset("mesh");
    mesh.source = Some("/lustre/mesh".into());
    let read = script("w", 1, vec![(Role::In, Single, mesh)]);
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(read))),
        ControllerReply::Done
    );
    world.close("n1");
    let token = world.stage(1, Stage::PreRun(vec!["n1".into()]));
    world.pass(30);
    assert_eq!(world.answers.get(&token), None);
    world.pass(31);
    assert_eq!(refused(&world.answers[&token]).code, Code::Lost);
}

#[test]
fn a_node_that_comes_back_with_what_was_given_up_is_believed_after_a_check() {
    let mut world = World::new(2, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(1, makes, &["n1"]);
    // It comes back without it, as after a loss of power, and later with it.
    world.close("n1");
    let kept = std::mem::take(&mut world.nodes.get_mut("n1").unwrap().parts);
    world.open("n1");
    world.settle();
    let reads = script("w", 1, vec![(Role::In, Single, dataset("x"))]);
    assert_eq!(
        world.staged(2, Stage::Setup(Box::new(reads))),
        ControllerReply::Done
    );
    let reply = world.pre_run(2, &["n2"]);
    assert_eq!(refused(&reply).code, Code::Lost);
    world.close("n1");
    world.nodes.get_mut("n1").unwrap().parts = kept;
    world.open("n1");
    assert!(
        world
            .queue
            .iter()
            .any(|(_, _, order)| format!("{order:?}").contains("Check"))
    );
    world.settle();
    assert_eq!(world.pre_run(2, &["n2"]), ControllerReply::Done);
}

#[test]
fn what_nobody_knows_is_an_orphan_and_goes_after_a_week() {
    let mut world = World::new(1, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(1, makes, &["n1"]);
    let (part, proof) = world.nodes["n1"].parts.clone().pop_first().unwrap();
    let strange = tarn_proto::site::Part {
        workflow: "other".into(),
        ..part
    };
    world.close("n1");
    world
        .nodes
        .get_mut("n1")
        .unwrap()
        .parts
        .insert(strange, proof);
    world.open("n1");
    world.settle();
    let Some(ControllerReply::Nodes(nodes)) =
        world
            .site
            .answer(BOB, &[], false, &ControllerRequest::Nodes)
    else {
        panic!("no nodes");
    };
    assert_eq!(nodes[0].orphans, 1);
    world.pass(6 * 24 * 3600);
    assert_eq!(world.parts_on("n1").len(), 2);
    world.pass(24 * 3600);
    assert_eq!(
        world.nodes["n1"]
            .parts
            .keys()
            .filter(|p| p.workflow == "other")
            .count(),
        0
    );
}

#[test]
fn leases_end_and_wishes_prolong_them() {
    let mut world = World::new(1, Config::default());
    for (job, name) in [(1, "short"), (2, "long"), (3, "ever")] {
        let mut data = dataset(name);
        if name == "ever" {
            data.keep = Keep::Forever;
        }
        world.whole(
            job,
            script(name, 1, vec![(Role::Out, Single, data)]),
            &["n1"],
        );
    }
    let until = world.now + 30 * 24 * 3600 * SECOND;
    let keep = ControllerRequest::Keep {
        owner: Owner::User(ALICE),
        workflow: "long".into(),
        dataset: "long".into(),
        until,
    };
    let denied = world.ask_as(BOB, false, keep.clone());
    assert_eq!(refused(&world.answers[&denied]).code, Code::Denied);
    let token = world.ask_as(ALICE, false, keep);
    assert_eq!(world.answers[&token], ControllerReply::Done);
    world.pass(7 * 24 * 3600 + 1);
    assert_eq!(world.parts_on("n1"), ["ever/1.0", "long/1.0"]);
    world.pass(24 * 24 * 3600);
    assert_eq!(world.parts_on("n1"), ["ever/1.0"]);
}

#[test]
fn space_is_made_of_what_can_be_had_again_and_of_nothing_else() {
    let mut world = World::new(1, Config::default());
    world.capacity = 5 << 20;
    world.size = 2 << 20;
    world.open("n1");
    let source = |name: &str| {
        let mut data = dataset(name);
        data.source = Some(format!("/lustre/{name}").into());
        data
    };
    let mut made = dataset("made");
    made.size = Some(2 << 20);
    world.whole(
        1,
        script("a", 1, vec![(Role::In, Single, source("one"))]),
        &["n1"],
    );
    world.whole(
        2,
        script("b", 1, vec![(Role::Out, Single, made.clone())]),
        &["n1"],
    );
    // There is no space beside both; the source can be read again.
    world.whole(
        3,
        script("c", 1, vec![(Role::Out, Single, made.clone())]),
        &["n1"],
    );
    assert_eq!(world.parts_on("n1"), ["made/1.0", "made/1.0"]);
    let fourth = script("d", 1, vec![(Role::Out, Single, made)]);
    assert_eq!(
        world.staged(4, Stage::Setup(Box::new(fourth))),
        ControllerReply::Done
    );
    let reply = world.pre_run(4, &["n1"]);
    assert_eq!(refused(&reply).code, Code::NoSpace);
    assert_eq!(world.parts_on("n1"), ["made/1.0", "made/1.0"]);
}

#[test]
fn what_no_node_can_hold_is_refused_before_it_has_nodes() {
    let mut world = World::new(1, Config::default());
    world.capacity = 5 << 20;
    world.open("n1");
    let job = |sizes: [u64; 2]| {
        let data = |name: &str, size| {
            let mut data = dataset(name);
            data.size = Some(size);
            (Role::Out, Single, data)
        };
        let made = vec![data("one", sizes[0]), data("two", sizes[1])];
        Stage::Setup(Box::new(script("a", 1, made)))
    };
    let reply = world.staged(1, job([3 << 20, 3 << 20]));
    assert_eq!(refused(&reply).code, Code::NoSpace);
    assert!(
        refused(&reply)
            .text
            .contains("no node has more than 5242880")
    );
    assert_eq!(
        world.staged(2, job([3 << 20, 2 << 20])),
        ControllerReply::Done
    );
}

/// Weiland 2018, section 3: by the storage that is free. Data with a copy elsewhere counts as free, a job's inputs as
/// there.
#[test]
fn nodes_without_space_are_named_to_a_job_until_they_have_some() {
    let mut world = World::new(3, Config::default());
    world.capacity = 5 << 20;
    for node in ["n1", "n2", "n3"] {
        world.open(node);
    }
    let makes = |workflow: &str, mib: u64| {
        let mut data = dataset("big");
        data.size = Some(mib << 20);
        data.keep = Keep::For(3600 * SECOND);
        script(workflow, 1, vec![(Role::Out, Single, data)])
    };
    world.size = 3 << 20;
    world.whole(1, makes("one", 3), &["n1"]);
    world.whole(2, makes("two", 1), &["n2"]);
    // Two nodes have enough, or one of them.
    let mut job = makes("three", 3);
    job.excludes = Some(vec!["n3".to_owned()]);
    let token = world.stage(3, Stage::Setup(Box::new(job)));
    world.list(&[], &[]);
    let Some(ControllerReply::Advice(advice)) = world.answers.remove(&token) else {
        panic!("it is taken in");
    };
    let waiting = world.site.excluded();
    let [(3, excluded)] = &waiting[..] else {
        panic!("{waiting:?}");
    };
    assert_eq!(advice.exclude.as_ref(), Some(excluded));
    assert_eq!(excluded.own, ["n3"]);
    assert_eq!(excluded.full, ["n1", "n2"]);
    let gone = ControllerRequest::Remove {
        owner: Owner::User(ALICE),
        workflow: "one".into(),
        dataset: None,
        version: None,
    };
    let token = world.ask_as(ALICE, false, gone);
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    assert_eq!(world.site.excluded()[0].1.full, ["n2"]);
    // Other people's files take space, too.
    let capacity = StoreCapacity {
        root: "/scm/tarn".into(),
        bytes: 5 << 20,
        free: 1 << 20,
        persistent: true,
    };
    world.close("n1");
    world.event(SiteServiceEvent::Opened {
        node: "n1".into(),
        capacity,
        stores: Vec::new(),
        holds: Vec::new(),
        partial: Vec::new(),
        jobs: Vec::new(),
    });
    assert_eq!(world.site.excluded()[0].1.full, ["n1", "n2"]);
    world.check_replay(Config::default());
}

/// Weiland 2018, section 2.2: a job's inputs are there before it has nodes.
#[test]
fn what_is_read_is_brought_to_where_jobs_are_expected() {
    let config = Config {
        ahead: true,
        ..Config::default()
    };
    let mut world = World::new(3, config.clone());
    let reads = |name: &str| {
        let mut data = dataset(name);
        data.source = Some(format!("/lustre/{name}").into());
        script(name, 1, vec![(Role::In, Single, data)])
    };
    let ahead = |nodes: &[&str]| Stage::Ahead(nodes.iter().map(|n| (*n).to_owned()).collect());
    for (job, name, node) in [(1, "one", "n1"), (2, "two", "n2")] {
        let setup = Stage::Setup(Box::new(reads(name)));
        assert_eq!(world.staged(job, setup), ControllerReply::Done);
        assert_eq!(world.advices[&job].prefer, [node]);
        assert_eq!(world.staged(job, ahead(&[node])), ControllerReply::Done);
        assert_eq!(world.parts_on(node), [format!("{name}/0.0")]);
    }
    // It gets the node that it was expected on, or another one: that has it from there.
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n3"]), ControllerReply::Done);
    assert_eq!(world.parts_on("n3"), ["two/0.0"]);
    for name in ["one", "two"] {
        assert_eq!(world.read[&Path::new("/lustre").join(name)], world.size);
    }
    // An input that cannot be brought does not keep a job from nodes: there it may be possible.
    let setup = Stage::Setup(Box::new(reads("three")));
    assert_eq!(world.staged(3, setup), ControllerReply::Done);
    assert_eq!(
        world.staged(3, ahead(&["elsewhere"])),
        ControllerReply::Done
    );
    world.check_replay(config);
}

#[test]
fn quotas_hold_a_job_before_it_has_nodes() {
    let config = Config {
        quota: 3 << 20,
        ..Config::default()
    };
    let mut world = World::new(1, config);
    let mut data = dataset("x");
    data.size = Some(2 << 20);
    let first = script("w", 1, vec![(Role::Out, Single, data.clone())]);
    world.whole(1, first, &["n1"]);
    let mut larger = data;
    larger.size = Some(3 << 20);
    let second = script("v", 1, vec![(Role::Out, Single, larger)]);
    let reply = world.staged(2, Stage::Setup(Box::new(second)));
    assert_eq!(refused(&reply).code, Code::Quota);
}

#[test]
fn a_cancelled_job_leaves_at_once_and_what_is_to_be_rescued_is() {
    let mut world = World::new(1, Config::default());
    let mut data = dataset("x");
    data.on_failure = OnFailure::Drain;
    let makes = script("w", 1, vec![(Role::Out, Single, data)]);
    assert_eq!(
        world.staged(1, Stage::Setup(Box::new(makes))),
        ControllerReply::Done
    );
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    let token = world.stage(1, Stage::Teardown { hurry: true });
    assert_eq!(world.answers.get(&token), Some(&ControllerReply::Done));
    world.settle();
    assert!(world.sent.contains_key(Path::new("/lustre/rescue/w-x-1")));
    assert!(world.nodes["n1"].jobs.is_empty());
    world.pass(25 * 3600);
    assert!(world.parts_on("n1").is_empty());
}

#[test]
fn copies_are_made_where_there_is_space() {
    let mut world = World::new(3, Config::default());
    let mut data = dataset("x");
    data.copies = 2;
    world.whole(1, script("w", 1, vec![(Role::Out, Single, data)]), &["n1"]);
    let holders = world.nodes.values().filter(|n| !n.parts.is_empty()).count();
    assert_eq!(holders, 2);
}

/// docs/admin/energy.md, "On a site".
#[test]
fn of_nodes_with_the_same_data_those_that_draw_least_are_preferred() {
    let mut world = World::new(3, Config::default());
    let watts = |watts: u64, source| Draw {
        power: Some(Power {
            milliwatts: watts * 1000,
            source,
        }),
        warmth: None,
    };
    let reader = |wants| {
        let mut case = dataset("case");
        case.source = Some("/lustre/case".into());
        let mut job = script("foam", wants, vec![(Role::In, Broadcast, case)]);
        job.workflow.name = "foam".into();
        job
    };
    let setup = |job: JobSubmission| Stage::Setup(Box::new(job));
    let advice = |world: &mut World, job, wants| {
        assert_eq!(
            world.staged(job, setup(reader(wants))),
            ControllerReply::Done
        );
        let advice = world.advices.get(&job);
        advice.map_or_else(Vec::new, |a| a.prefer.clone())
    };
    // Nothing is known: Slurm chooses.
    assert!(advice(&mut world, 1, 1).is_empty());
    for (node, drawn) in [("n1", 300), ("n2", 100), ("n3", 200)] {
        world.site.measured(node, watts(drawn, Source::Hwmon), 8);
    }
    // The data is on none: all are equal otherwise.
    assert_eq!(advice(&mut world, 2, 1), ["n2"]);
    assert_eq!(advice(&mut world, 3, 2), ["n2", "n3"]);
    // It is on two of them: the data decides first.
    world.whole(4, reader(2), &["n1", "n3"]);
    assert_eq!(advice(&mut world, 5, 1), ["n3"]);
    assert_eq!(advice(&mut world, 6, 3), ["n3", "n1"]);
    // Powers by different meters are not compared: by name, as before.
    world.site.measured("n1", watts(300, Source::Slurm), 8);
    assert_eq!(advice(&mut world, 7, 1), ["n1"]);
}
