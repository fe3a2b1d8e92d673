//! The users who may remove data; and no user acts for another.

use crate::end;
use crate::world::*;
use tarn_proto::local::Code;
use tarn_proto::site::*;
use tarn_site::Config;
use tarn_types::workflow::Distribution::Single;
use tarn_types::workflow::Role;

#[test]
fn only_its_owner_removes_a_dataset_and_not_while_a_job_has_it() {
    let mut world = World::new(1, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(1, makes, &["n1"]);
    let reads = script("w", 1, vec![(Role::In, Single, dataset("x"))]);
    assert_eq!(
        world.staged(2, Stage::Setup(Box::new(reads))),
        ControllerReply::Done
    );
    let remove = ControllerRequest::Remove {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: None,
        version: None,
    };
    for (user, code) in [(BOB, Code::Denied), (ALICE, Code::Busy)] {
        let token = world.ask_as(user, false, remove.clone());
        assert_eq!(refused(&world.answers[&token]).code, code);
    }
    assert_eq!(
        world.staged(2, Stage::Teardown { hurry: false }),
        ControllerReply::Done
    );
    let token = world.ask_as(ALICE, false, remove);
    world.settle();
    assert_eq!(world.answers[&token], ControllerReply::Done);
    assert!(world.parts_on("n1").is_empty());
    let Some(ControllerReply::Datasets(seen)) =
        world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Datasets)
    else {
        panic!("no datasets");
    };
    assert!(seen.is_empty());
}

#[test]
fn users_do_not_speak_for_slurm_nor_see_each_others_data() {
    let mut world = World::new(1, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(1, makes.clone(), &["n1"]);
    let stage = ControllerRequest::Stage(tarn_proto::site::Staging {
        job: 1,
        stage: Stage::Setup(Box::new(makes)),
    });
    let token = world.ask_as(ALICE, false, stage);
    assert_eq!(refused(&world.answers[&token]).code, Code::Denied);
    let seen = |world: &World, user| match world.site.answer(
        user,
        &[user],
        false,
        &ControllerRequest::Datasets,
    ) {
        Some(ControllerReply::Datasets(seen)) => seen.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((seen(&world, ALICE), seen(&world, BOB)), (1, 0));
    let job = world
        .site
        .answer(BOB, &[], false, &ControllerRequest::Job(1))
        .unwrap();
    assert_eq!(refused(&job).code, Code::Denied);
    let grant = |may| ControllerRequest::Grant {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: "x".into(),
        to: Owner::User(BOB),
        may,
    };
    let token = world.ask_as(BOB, false, grant(true));
    assert_eq!(refused(&world.answers[&token]).code, Code::Denied);
    for (may, sees) in [(true, 1), (false, 0)] {
        world.ask_as(ALICE, false, grant(may));
        assert_eq!(seen(&world, BOB), sees);
    }
}

#[test]
fn what_was_removed_while_a_node_was_away_goes_when_it_is_back() {
    let mut world = World::new(1, Config::default());
    let makes = script("w", 1, vec![(Role::Out, Single, dataset("x"))]);
    world.whole(1, makes, &["n1"]);
    world.close("n1");
    end(&mut world, "w");
    assert_eq!(world.parts_on("n1"), ["x/1.0"]);
    world.open("n1");
    world.settle();
    assert!(world.parts_on("n1").is_empty());
    world.nodes.get_mut("n1").unwrap().jobs.insert((ALICE, 77));
    world.close("n1");
    world.open("n1");
    assert!(
        world
            .queue
            .iter()
            .any(|(_, _, o)| format!("{o:?}").contains(&format!("{:?}", StoreContent::Job(77))))
    );
    world.settle();
    assert!(world.nodes["n1"].jobs.is_empty());
}
