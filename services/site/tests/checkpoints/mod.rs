//! Checkpoints of steps: they outlive jobs that do not end well.

use crate::world::*;
use tarn_proto::local::Code;
use tarn_proto::site::{
    CheckpointFolder, ControllerReply, ControllerRequest, JobSubmission, Owner, Stage,
    StoreContent, Uid,
};
use tarn_site::Config;
use tarn_types::units::SECOND;
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::{CheckpointMethod, Restart, Role};

const OVER: Stage = Stage::Teardown { hurry: false };

fn job(nodes: u32, from: CheckpointMethod) -> JobSubmission {
    let mut job = script("foam", nodes, Vec::new());
    job.workflow.steps[0].restart = Some(Restart {
        from,
        space: 100 << 20,
        every: None,
        alone: false,
        buddy: false,
    });
    job
}

fn phx(nodes: u32) -> JobSubmission {
    job(nodes, CheckpointMethod::Phx)
}

fn setup(world: &mut World, id: u32, job: JobSubmission) -> ControllerReply {
    world.staged(id, Stage::Setup(Box::new(job)))
}

/// The nodes that have checkpoints of a user's.
fn kept(world: &World, user: Uid) -> Vec<&str> {
    let has = |store: &Store| store.checkpoints.keys().any(|(uid, _)| *uid == user);
    let have = world.nodes.iter().filter(|(_, store)| has(store));
    have.map(|(name, _)| name.as_str()).collect()
}

fn taken(world: &World) -> Vec<u64> {
    world
        .site
        .node_infos()
        .iter()
        .map(|n| n.taken >> 20)
        .collect()
}

/// It begins there, and ends.
fn run(world: &mut World, id: u32, nodes: &[&str], ok: bool) {
    assert_eq!(world.pre_run(id, nodes), ControllerReply::Done);
    world.staged(id, Stage::PostRun { ok });
    assert_eq!(world.staged(id, OVER), ControllerReply::Done);
}

#[test]
fn a_job_that_is_put_back_prefers_the_nodes_with_its_checkpoints_until_it_ends_well() {
    let mut world = World::new(4, Config::default());
    setup(&mut world, 1, phx(2));
    assert!(world.advices[&1].prefer.is_empty() && !world.advices[&1].is_again);
    assert_eq!(world.pre_run(1, &["n2", "n3"]), ControllerReply::Done);
    let mount = &world.nodes["n3"].admitted[&1][0];
    assert_eq!(mount.path.to_str(), Some("u1000/c/foam/step"));
    assert_eq!(mount.checkpoints, Some(CheckpointMethod::Phx));
    assert_eq!(taken(&world), [0, 100, 100, 0]);
    // A node is lost: Slurm puts the job back. What is in memory on the other is brought to its checkpoints.
    world.close("n3");
    assert_eq!(world.staged(1, OVER), ControllerReply::Done);
    assert_eq!(world.destaged, ["n2"]);
    setup(&mut world, 1, phx(2));
    assert_eq!(world.advices[&1].prefer, ["n2"]);
    assert!(world.advices[&1].is_again);
    run(&mut world, 1, &["n2", "n4"], false);
    // The lost node is back: what it has is of no use any more.
    world.open("n3");
    world.settle();
    assert_eq!(kept(&world, ALICE), ["n2", "n4"]);
    setup(&mut world, 1, phx(2));
    assert_eq!(world.advices[&1].prefer, ["n2", "n4"]);
    // Another job of the step continues from them, too; after a good end nothing is left.
    assert_eq!(world.staged(1, OVER), ControllerReply::Done);
    setup(&mut world, 2, phx(2));
    run(&mut world, 2, &["n2", "n4"], true);
    assert!(kept(&world, ALICE).is_empty());
    assert_eq!(taken(&world), [0; 4]);
    world.check_replay(Config::default());
}

#[test]
fn one_job_at_a_time_has_the_checkpoints_of_a_step_and_users_have_their_own() {
    let mut world = World::new(2, Config::default());
    setup(&mut world, 1, phx(1));
    setup(&mut world, 2, phx(1));
    let bobs = JobSubmission {
        user: BOB,
        groups: groups(BOB),
        ..phx(1)
    };
    setup(&mut world, 3, bobs);
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    let reply = world.pre_run(2, &["n1"]);
    assert_eq!(refused(&reply).code, Code::Busy);
    assert!(
        refused(&reply).text.contains("job 1 has the checkpoints"),
        "{reply:?}"
    );
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    assert_eq!(taken(&world), [200, 0]);
    // Cancelled, the first leaves them to the second, which waits for that at its gate.
    world.stage(1, OVER);
    let gate = world.stage(2, Stage::PreRun(vec!["n1".into()]));
    assert!(!world.answers.contains_key(&gate));
    world.settle();
    assert_eq!(world.answers.remove(&gate), Some(ControllerReply::Done));
    assert_eq!(taken(&world), [200, 0]);
    // Nobody removes what a job has; nobody else removes it ever.
    let remove = |world: &mut World, user| {
        let ask = ControllerRequest::Remove {
            owner: Owner::User(ALICE),
            workflow: "foam".into(),
            dataset: Some("step".into()),
            version: None,
        };
        let token = world.ask_as(user, false, ask);
        world.settle();
        world.answers.remove(&token).expect("an answer")
    };
    assert_eq!(refused(&remove(&mut world, ALICE)).code, Code::Busy);
    world.staged(2, OVER);
    assert_eq!(refused(&remove(&mut world, BOB)).code, Code::Denied);
    assert_eq!(kept(&world, ALICE), ["n1"]);
    assert_eq!(remove(&mut world, ALICE), ControllerReply::Done);
    assert!(kept(&world, ALICE).is_empty());
    assert_eq!(kept(&world, BOB), ["n1"]);
    assert_eq!(refused(&remove(&mut world, ALICE)).code, Code::NotFound);
    world.check_replay(Config::default());
}

#[test]
fn checkpoints_end_with_their_lease_with_their_nodes_memory_and_with_the_quota() {
    let config = Config {
        lease: 1000 * SECOND,
        quota: 150 << 20,
        ..Config::default()
    };
    let mut world = World::new(3, config.clone());
    setup(&mut world, 1, job(1, CheckpointMethod::Files));
    run(&mut world, 1, &["n1"], false);
    assert!(world.destaged.is_empty(), "only libtarn stages in memory");
    // They count in the quota, but not twice for the job that continues from them.
    let other = |name: &str| {
        let mut job = phx(1);
        job.workflow.name = name.into();
        job
    };
    let reply = setup(&mut world, 2, other("other"));
    assert_eq!(refused(&reply).code, Code::Quota);
    assert_eq!(setup(&mut world, 3, phx(1)), ControllerReply::Done);
    // As long as a job waits that continues from them, they stay.
    world.pass(2000);
    assert_eq!(kept(&world, ALICE), ["n1"]);
    world.staged(3, OVER);
    world.pass(2000);
    assert!(kept(&world, ALICE).is_empty());
    // A node comes back without what was in its memory.
    setup(&mut world, 4, phx(1));
    run(&mut world, 4, &["n2"], false);
    assert_eq!(taken(&world), [0, 100, 0]);
    world.close("n2");
    world.nodes.get_mut("n2").unwrap().checkpoints.clear();
    world.open("n2");
    assert_eq!(taken(&world), [0, 0, 0]);
    assert_eq!(setup(&mut world, 5, phx(1)), ControllerReply::Done);
    assert!(world.advices[&5].prefer.is_empty());
    // Checkpoints that nobody knows are orphans.
    let folder = CheckpointFolder {
        workflow: "x".into(),
        step: "y".into(),
    };
    let unknown = (ALICE, folder.clone());
    world
        .nodes
        .get_mut("n3")
        .unwrap()
        .checkpoints
        .insert(unknown.clone(), String::new());
    world.close("n3");
    world.open("n3");
    let orphans = world
        .site
        .answer(ALICE, &groups(ALICE), false, &ControllerRequest::Orphans);
    let Some(ControllerReply::Orphans(orphans)) = orphans else {
        panic!("{orphans:?}");
    };
    assert_eq!(orphans[0].what, "checkpoints of step `y` (workflow `x`)");
    world.pass(8 * 24 * 3600);
    assert!(!world.nodes["n3"].checkpoints.contains_key(&unknown));
    assert!(StoreContent::Checkpoints(folder).part().is_none());
    world.check_replay(config);
}

#[test]
fn images_are_refused_and_a_script_without_a_name_continues_by_its_number() {
    let mut world = World::new(2, Config::default());
    let reply = setup(&mut world, 1, job(1, CheckpointMethod::Image));
    assert_eq!(refused(&reply).code, Code::Unsupported);
    assert!(refused(&reply).text.contains("tarn run"), "{reply:?}");
    let mut secret = dataset("secret");
    (secret.encrypt, secret.size) = (true, Some(1 << 20));
    world.whole(
        9,
        script("foam", 1, vec![(Role::Out, Single, secret)]),
        &["n1"],
    );
    let mut reads = script("foam", 1, vec![(Role::In, Single, dataset("secret"))]);
    reads.workflow.steps[0].restart = phx(1).workflow.steps[0].restart;
    let reply = setup(&mut world, 1, reads);
    assert!(
        refused(&reply).text.contains("checkpoints would be kept"),
        "{reply:?}"
    );
    let alone = || JobSubmission {
        is_alone: true,
        ..phx(1)
    };
    setup(&mut world, 2, alone());
    run(&mut world, 2, &["n2"], false);
    setup(&mut world, 2, alone());
    assert_eq!(world.advices[&2].prefer, ["n2"]);
    setup(&mut world, 3, alone());
    assert!(world.advices[&3].prefer.is_empty());
}

/// The inputs of a job that Slurm puts back stay until it is there again, even if its workflow has ended; its readers wait.
#[test]
fn what_a_job_reads_stays_while_slurm_puts_it_back() {
    let mut world = World::new(2, Config::default());
    let makes = |name: &str| script("foam", 1, vec![(Role::Out, Single, dataset(name))]);
    let middle = || {
        let data = vec![
            (Role::In, Single, dataset("a")),
            (Role::Out, Single, dataset("b")),
        ];
        script("foam", 1, data)
    };
    world.whole(1, makes("a"), &["n1"]);
    setup(&mut world, 2, middle());
    let last = script("foam", 1, vec![(Role::In, Single, dataset("b"))]);
    setup(&mut world, 3, last);
    crate::end(&mut world, "foam");
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    world.staged(2, Stage::PostRun { ok: false });
    assert_eq!(world.staged(2, Stage::PutBack), ControllerReply::Done);
    world.pass(60);
    assert_eq!(world.parts_on("n1"), ["a/1.0"]);
    world.whole(2, middle(), &["n1"]);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    // It had ended before, and nothing more is read.
    world.staged(3, Stage::PostRun { ok: true });
    world.staged(3, OVER);
    assert!(world.parts_on("n1").is_empty());
    // A job that is cancelled while it is put back lets go of it.
    world.whole(4, makes("a"), &["n1"]);
    setup(&mut world, 5, middle());
    crate::end(&mut world, "foam");
    assert_eq!(world.pre_run(5, &["n1"]), ControllerReply::Done);
    world.staged(5, Stage::PutBack);
    assert_eq!(world.parts_on("n1").len(), 1);
    world.staged(5, OVER);
    assert!(world.parts_on("n1").is_empty());
    world.check_replay(Config::default());
}
