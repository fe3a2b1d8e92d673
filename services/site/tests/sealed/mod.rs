//! Encrypted datasets: sealed in all stores, in clear only in the memory of jobs.

use super::world::*;
use tarn_proto::local::Code;
use tarn_proto::site::{ControllerReply, JobSubmission, Mount, Owner, Stage, Work};
use tarn_site::Config;
use tarn_types::workflow::Dataset;
use tarn_types::workflow::Distribution::{Broadcast, Single};
use tarn_types::workflow::Role;

fn encrypted(name: &str) -> Dataset {
    Dataset {
        encrypt: true,
        size: Some(1 << 20),
        ..dataset(name)
    }
}

fn setup(world: &mut World, job: u32, script: &JobSubmission) -> ControllerReply {
    world.staged(job, Stage::Setup(Box::new(script.clone())))
}

fn mounts(world: &World, node: &str, job: u32) -> Vec<Mount> {
    world.nodes[node].admitted[&job].clone()
}

#[test]
fn what_is_encrypted_stays_so_from_job_to_job() {
    let mut world = World::new(2, Config::default());
    let mut case = encrypted("case");
    case.source = Some("/lustre/case".into());
    let makes = script(
        "w",
        1,
        vec![
            (Role::In, Single, case),
            (Role::Out, Single, encrypted("x")),
        ],
    );
    assert_eq!(setup(&mut world, 1, &makes), ControllerReply::Done);
    assert_eq!(world.pre_run(1, &["n1"]), ControllerReply::Done);
    // Its input and the output that it may write.
    let space = world.size + 2 * 4096;
    assert_eq!(
        world.memory[&("n1".to_owned(), 1)],
        space + (1 << 20) + (1 << 20)
    );
    let seen = mounts(&world, "n1", 1);
    let paths: Vec<String> = seen.iter().map(|m| m.path.display().to_string()).collect();
    assert!(seen.iter().all(|m| m.in_memory), "{seen:?}");
    assert_eq!(paths, [format!("u{ALICE}/v/case"), format!("u{ALICE}/w/x")]);
    assert_eq!(
        world.staged(1, Stage::PostRun { ok: true }),
        ControllerReply::Done
    );
    assert_eq!(world.staged(1, Stage::DataOut), ControllerReply::Done);
    assert_eq!(
        world.staged(1, Stage::Teardown { hurry: false }),
        ControllerReply::Done
    );
    assert!(world.nodes["n1"].parts.values().all(|proof| proof.sealed));

    // A script that does not declare it gets it as it is, and its output is encrypted too; the world refuses anything
    // else.
    let mut plain = dataset("x");
    let changes = |x: &Dataset| script("w", 1, vec![(Role::Inout, Broadcast, x.clone())]);
    let reply = setup(&mut world, 2, &changes(&plain));
    assert_eq!(refused(&reply).code, Code::Invalid);
    assert!(refused(&reply).text.contains("data.x.size"), "{reply:?}");
    plain.size = Some(1 << 20);
    world.whole(2, changes(&plain), &["n2"]);
    assert!(world.nodes["n2"].parts.values().all(|proof| proof.sealed));
    assert_eq!(world.parts_on("n2"), ["x/1.0", "x/2.0"]);
}

#[test]
fn a_job_that_is_put_elsewhere_leaves_nothing_in_clear_where_it_was() {
    let mut world = World::new(2, Config::default());
    let mut case = encrypted("case");
    case.source = Some("/lustre/case".into());
    let data = vec![
        (Role::In, Single, case),
        (Role::Out, Single, encrypted("x")),
    ];
    let job = script("w", 1, data);
    assert_eq!(setup(&mut world, 1, &job), ControllerReply::Done);
    // Its input is there in clear, then something fails, and Slurm puts it elsewhere.
    world.refuses = Some((|work| matches!(work, Work::Prepare { .. }), Code::Io));
    assert_eq!(refused(&world.pre_run(1, &["n1"])).code, Code::Io);
    world.refuses = None;
    let has = |world: &World, node: &str| world.memory.contains_key(&(node.to_owned(), 1));
    assert!(has(&world, "n1"));
    assert_eq!(world.pre_run(1, &["n2"]), ControllerReply::Done);
    assert!(has(&world, "n2") && !has(&world, "n1"));
}

#[test]
fn what_lies_in_the_clear_is_not_said_to_be_encrypted() {
    let mut world = World::new(1, Config::default());
    world.whole(
        1,
        script("w", 1, vec![(Role::Out, Single, dataset("x"))]),
        &["n1"],
    );
    for role in [Role::In, Role::Inout] {
        let reply = setup(
            &mut world,
            2,
            &script("w", 1, vec![(role, Single, encrypted("x"))]),
        );
        assert_eq!(refused(&reply).code, Code::Invalid, "{reply:?}");
        assert!(refused(&reply).text.contains("unencrypted"), "{reply:?}");
    }
}

#[test]
fn who_is_let_read_it_reads_it_in_their_own_jobs_memory() {
    let mut world = World::new(1, Config::default());
    world.whole(
        1,
        script("w", 1, vec![(Role::Out, Single, encrypted("x"))]),
        &["n1"],
    );
    let grant = tarn_proto::site::ControllerRequest::Grant {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: "x".into(),
        to: Owner::User(BOB),
        may: true,
    };
    let token = world.ask_as(ALICE, false, grant);
    world.settle();
    assert_eq!(world.answers.remove(&token), Some(ControllerReply::Done));
    let mut theirs = dataset("theirs");
    theirs.of = Some("alice/w/x".parse().unwrap());
    let mut reads = script("v", 1, vec![(Role::In, Single, theirs)]);
    reads.user = BOB;
    reads.owners = [("alice".to_owned(), Owner::User(ALICE))].into();
    assert_eq!(setup(&mut world, 2, &reads), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    let [mount] = &mounts(&world, "n1", 2)[..] else {
        panic!("one dataset")
    };
    assert_eq!((mount.owner, mount.in_memory), (Owner::User(ALICE), true));
    assert!(world.memory[&("n1".to_owned(), 2)] > world.size);
}
