//! Data that outlives jobs: projects, grants, leases, quotas, usage.

mod verify;

use crate::world::*;
use tarn_proto::local::Code;
use tarn_proto::site::*;
use tarn_site::Config;
use tarn_types::units::{SECOND, Time};
use tarn_types::workflow::Distribution::{Scatter, Single};
use tarn_types::workflow::{Dataset, Keep, Role};

const DAY: u64 = 24 * 3600;

/// A job's script of a user.
fn by(user: Uid, workflow: &str, data: Vec<(Role, Dataset)>) -> JobSubmission {
    let data = data.into_iter().map(|(role, d)| (role, Single, d));
    let owners = [
        ("alice", Owner::User(ALICE)),
        ("bob", Owner::User(BOB)),
        ("@climate", Owner::Project(PROJECT)),
    ];
    JobSubmission {
        user,
        group: user,
        groups: groups(user),
        owners: owners.map(|(name, who)| (name.to_owned(), who)).into(),
        ..script(workflow, 1, data.collect())
    }
}

/// Dataset `name` of a script, as another dataset `named`.
fn of(name: &str, named: &str) -> Dataset {
    let mut data = dataset(name);
    data.of = Some(named.parse().expect("a name"));
    data
}

fn forcing() -> Dataset {
    of("forcing", "@climate/forcing")
}

fn send_request(world: &mut World, user: Uid, ask: ControllerRequest) -> ControllerReply {
    let token = world.ask_as(user, false, ask);
    world.settle();
    world.answers.remove(&token).expect("an answer")
}

fn grant(to: Owner, may: bool) -> ControllerRequest {
    ControllerRequest::Grant {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: "x".into(),
        to,
        may,
    }
}

fn setup(world: &mut World, job: SlurmJobId, script: JobSubmission) -> ControllerReply {
    world.staged(job, Stage::Setup(Box::new(script)))
}

fn over(world: &mut World, job: SlurmJobId) {
    let stage = Stage::Teardown { hurry: false };
    assert_eq!(world.staged(job, stage), ControllerReply::Done);
}

/// Alice has made `w/x` on n1.
fn with_x(nodes: usize) -> World {
    let mut world = World::new(nodes, Config::default());
    let makes = by(ALICE, "w", vec![(Role::Out, dataset("x"))]);
    world.whole(1, makes, &["n1"]);
    world
}

#[test]
fn what_was_granted_is_read_where_it_lies_and_by_its_owners_rights() {
    let mut world = with_x(2);
    assert_eq!(
        send_request(&mut world, ALICE, grant(Owner::User(BOB), true)),
        ControllerReply::Done
    );
    let read = || by(BOB, "mine", vec![(Role::In, of("grid", "alice/w/x"))]);
    assert_eq!(setup(&mut world, 2, read()), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    let mounts = &world.nodes["n1"].admitted[&2];
    assert_eq!(mounts.len(), 1);
    assert_eq!(
        (&*mounts[0].dataset, mounts[0].owner, mounts[0].writable),
        ("grid", Owner::User(ALICE), false)
    );
    assert_eq!(
        mounts[0].path.to_str(),
        Some("u1000/d/w/x/1/0/tree"),
        "one copy for both"
    );
    over(&mut world, 2);
    // On another node it is fetched once, with the rights of its owner.
    assert_eq!(setup(&mut world, 3, read()), ControllerReply::Done);
    let token = world.stage(3, Stage::PreRun(vec!["n2".into()]));
    while let Some((node, number, order)) = (!world.queue.is_empty()).then(|| world.queue.remove(0))
    {
        match &order {
            NodeOrder::Do { user, work, .. } => {
                assert!(matches!(**work, Work::Fetch { .. }));
                assert_eq!(*user, ALICE);
            }
            NodeOrder::Serve { user, .. } => assert_eq!(*user, ALICE),
            NodeOrder::Admit { user, .. } => assert_eq!(*user, BOB),
            _ => {}
        }
        world.perform(&node, number, order);
    }
    assert_eq!(world.answers.get(&token), Some(&ControllerReply::Done));
    assert_eq!(world.parts_on("n2"), ["x/1.0"]);
    over(&mut world, 3);
    // By a group too.
    assert_eq!(
        send_request(&mut world, ALICE, grant(Owner::User(BOB), false)),
        ControllerReply::Done
    );
    assert_eq!(
        refused(&setup(&mut world, 4, read())).code,
        Code::Denied,
        "revoked"
    );
    assert_eq!(
        send_request(&mut world, ALICE, grant(Owner::Project(PROJECT), true)),
        ControllerReply::Done
    );
    assert_eq!(setup(&mut world, 5, read()), ControllerReply::Done);
    world.check_replay(Config::default());
}

#[test]
fn what_is_revoked_is_refused_to_jobs_that_have_not_begun_and_may_be_removed() {
    let mut world = with_x(1);
    send_request(&mut world, ALICE, grant(Owner::User(BOB), true));
    let read = || by(BOB, "mine", vec![(Role::In, of("x", "alice/w/x"))]);
    for job in [2, 3] {
        assert_eq!(setup(&mut world, job, read()), ControllerReply::Done);
    }
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    send_request(&mut world, ALICE, grant(Owner::User(BOB), false));
    // The one that runs has it, and keeps it from being removed; the other one does neither.
    let remove = ControllerRequest::Remove {
        owner: Owner::User(ALICE),
        workflow: "w".into(),
        dataset: Some("x".into()),
        version: None,
    };
    let busy = send_request(&mut world, ALICE, remove.clone());
    assert_eq!(refused(&busy).code, Code::Busy);
    assert!(refused(&busy).text.contains("job 2:"), "{busy:?}");
    let why = world.pre_run(3, &["n1"]);
    assert_eq!(refused(&why).code, Code::Denied);
    assert!(refused(&why).text.contains("revoked"), "{why:?}");
    over(&mut world, 2);
    assert_eq!(
        send_request(&mut world, ALICE, remove),
        ControllerReply::Done
    );
    assert!(world.parts_on("n1").is_empty());
}

#[test]
fn attack_nobody_reads_learns_of_or_changes_what_is_not_theirs() {
    let mut world = with_x(1);
    // The refusal is the same whether the dataset is there or not.
    let mut texts = Vec::new();
    for name in ["alice/w/x", "alice/w/nothing"] {
        let why = setup(&mut world, 2, by(BOB, "m", vec![(Role::In, of("x", name))]));
        assert_eq!(refused(&why).code, Code::Denied);
        texts.push(refused(&why).text.replace(name, "NAME"));
    }
    assert_eq!(texts[0], texts[1]);
    // Not by writing either, not even when it was granted.
    send_request(&mut world, ALICE, grant(Owner::User(BOB), true));
    for role in [Role::Out, Role::Inout] {
        let why = setup(
            &mut world,
            2,
            by(BOB, "m", vec![(role, of("x", "alice/w/x"))]),
        );
        assert_eq!(refused(&why).code, Code::Denied);
    }
    send_request(&mut world, ALICE, grant(Owner::User(BOB), false));
    let (owner, workflow, dataset) = (Owner::User(ALICE), "w".to_owned(), "x".to_owned());
    let requests = [
        grant(Owner::User(BOB), true),
        grant(Owner::User(CAROL), false),
        ControllerRequest::Remove {
            owner,
            workflow: workflow.clone(),
            dataset: None,
            version: None,
        },
        ControllerRequest::Keep {
            owner,
            workflow: workflow.clone(),
            dataset: dataset.clone(),
            until: Time::MAX,
        },
        ControllerRequest::Release {
            owner,
            workflow: workflow.clone(),
            dataset: dataset.clone(),
        },
    ];
    for ask in requests {
        for user in [BOB, CAROL] {
            let why = send_request(&mut world, user, ask.clone());
            assert_eq!(refused(&why).code, Code::Denied, "{ask:?}");
        }
    }
    let which = DatasetFilter {
        owner: Some(owner),
        workflow: Some(workflow),
        dataset: Some(dataset),
    };
    let seen = |world: &World, user: Uid| match world.site.answer(
        user,
        &groups(user),
        false,
        &ControllerRequest::Find(which.clone()),
    ) {
        Some(ControllerReply::Datasets(seen)) => seen,
        other => panic!("{other:?}"),
    };
    assert_eq!(seen(&world, BOB), []);
    // A reader does not learn of other readers, nor of their jobs.
    send_request(&mut world, ALICE, grant(Owner::User(BOB), true));
    send_request(&mut world, ALICE, grant(Owner::User(CAROL), true));
    let read = by(CAROL, "c", vec![(Role::In, of("x", "alice/w/x"))]);
    assert_eq!(setup(&mut world, 7, read), ControllerReply::Done);
    let bobs = seen(&world, BOB);
    assert_eq!((bobs[0].readers.len(), bobs[0].jobs.len()), (0, 0));
    let alices = seen(&world, ALICE);
    assert_eq!(
        (alices[0].readers.len(), &alices[0].jobs[..]),
        (2, &[7][..])
    );
    let usage = world
        .site
        .answer(BOB, &groups(BOB), false, &ControllerRequest::Usage(0));
    let Some(ControllerReply::Usage(usage)) = usage else {
        panic!("no usage");
    };
    assert!(usage.iter().all(|u| u.owner.is(BOB, &groups(BOB))));
}

#[test]
fn a_projects_dataset_is_its_members_to_make_and_read_across_workflows() {
    let mut world = World::new(2, Config::default());
    world.whole(1, by(ALICE, "a", vec![(Role::Out, forcing())]), &["n1"]);
    // It stays when workflows end, and is one copy a node for both.
    let end = ControllerRequest::End {
        user: ALICE,
        workflow: "a".into(),
    };
    assert_eq!(send_request(&mut world, ALICE, end), ControllerReply::Done);
    assert_eq!(world.parts_on("n1"), ["forcing/1.0"]);
    let read = by(BOB, "b", vec![(Role::In, forcing())]);
    assert_eq!(setup(&mut world, 2, read), ControllerReply::Done);
    assert_eq!(world.pre_run(2, &["n1"]), ControllerReply::Done);
    let mount = &world.nodes["n1"].admitted[&2][0];
    assert_eq!(mount.owner, Owner::Project(PROJECT));
    assert_eq!(mount.path.to_str(), Some("p500/d/named/forcing/1/0/tree"));
    over(&mut world, 2);
    // Bob makes the next version; a version in the making does not stop readers.
    let change = by(BOB, "b", vec![(Role::Inout, forcing())]);
    assert_eq!(setup(&mut world, 3, change), ControllerReply::Done);
    let read = by(ALICE, "c", vec![(Role::In, forcing())]);
    assert_eq!(setup(&mut world, 4, read), ControllerReply::Done);
    assert_eq!(world.pre_run(4, &["n2"]), ControllerReply::Done);
    assert_eq!(world.parts_on("n2"), ["forcing/1.0"]);
    over(&mut world, 4);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    for stage in [
        Stage::PostRun { ok: true },
        Stage::DataOut,
        Stage::Teardown { hurry: false },
    ] {
        assert_eq!(world.staged(3, stage), ControllerReply::Done);
    }
    assert_eq!(world.parts_on("n1"), ["forcing/1.0", "forcing/2.0"]);
    // A week after the last use it goes, with a notification a day before; each node gets the user who is to remove it.
    world.pass(6 * DAY + 60);
    let notified: Vec<_> = world
        .notifications
        .iter()
        .map(|(owner, _)| *owner)
        .collect();
    assert_eq!(notified, [Owner::Project(PROJECT); 2]);
    world.pass(DAY);
    assert!(world.parts_on("n1").is_empty() && world.parts_on("n2").is_empty());
    world.check_replay(Config::default());
}

#[test]
fn a_projects_encrypted_dataset_is_in_clear_in_the_memory_of_each_members_jobs() {
    let mut world = World::new(2, Config::default());
    let mut forcing = forcing();
    forcing.encrypt = true;
    forcing.size = Some(1 << 20);
    let make = by(ALICE, "a", vec![(Role::Out, forcing.clone())]);
    world.whole(1, make, &["n1"]);
    // Bob's script need not declare that it is encrypted; his own worker opens it, on any node.
    forcing.encrypt = false;
    let change = by(BOB, "b", vec![(Role::Inout, forcing.clone())]);
    world.whole(2, change, &["n2"]);
    assert_eq!(world.parts_on("n2"), ["forcing/1.0", "forcing/2.0"]);
    for node in ["n1", "n2"] {
        assert!(world.nodes[node].parts.values().all(|proof| proof.sealed));
    }
    let read = by(ALICE, "c", vec![(Role::In, forcing)]);
    assert_eq!(setup(&mut world, 3, read), ControllerReply::Done);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    let mount = &world.nodes["n1"].admitted[&3][0];
    assert_eq!(mount.owner, Owner::User(ALICE));
    let path = format!("u{ALICE}/v/forcing");
    assert_eq!(
        (mount.in_memory, mount.path.to_str()),
        (true, Some(&path[..]))
    );
    over(&mut world, 3);
    world.check_replay(Config::default());
}

#[test]
fn attack_a_projects_dataset_is_nothing_to_who_is_no_member() {
    let mut world = World::new(1, Config::default());
    world.whole(1, by(ALICE, "a", vec![(Role::Out, forcing())]), &["n1"]);
    for role in [Role::In, Role::Out, Role::Inout] {
        let why = setup(&mut world, 2, by(CAROL, "c", vec![(role, forcing())]));
        assert_eq!(refused(&why).code, Code::Denied);
    }
    let (owner, workflow) = (Owner::Project(PROJECT), Owner::NO_WORKFLOW.to_owned());
    let grant = ControllerRequest::Grant {
        owner,
        workflow: workflow.clone(),
        dataset: "forcing".into(),
        to: Owner::User(CAROL),
        may: true,
    };
    let remove = ControllerRequest::Remove {
        owner,
        workflow,
        dataset: None,
        version: None,
    };
    for ask in [&grant, &remove] {
        let why = send_request(&mut world, CAROL, ask.clone());
        assert_eq!(refused(&why).code, Code::Denied);
    }
    // A member grants; then it is read, and still not written.
    assert_eq!(send_request(&mut world, BOB, grant), ControllerReply::Done);
    let read = by(CAROL, "c", vec![(Role::In, forcing())]);
    assert_eq!(setup(&mut world, 3, read), ControllerReply::Done);
    let why = setup(
        &mut world,
        4,
        by(CAROL, "c", vec![(Role::Inout, forcing())]),
    );
    assert_eq!(refused(&why).code, Code::Denied);
    // A group that nobody knows is none.
    let strange = of("x", "@nobody/x");
    let why = setup(&mut world, 5, by(CAROL, "c", vec![(Role::In, strange)]));
    assert_eq!(refused(&why).code, Code::Invalid);
}

#[test]
fn a_projects_source_is_one_whoever_names_it() {
    let mut world = World::new(1, Config::default());
    let from = |path: &str| {
        let mut data = forcing();
        data.source = Some(path.into());
        data
    };
    world.whole(
        1,
        by(ALICE, "a", vec![(Role::In, from("/lustre/era5"))]),
        &["n1"],
    );
    let why = setup(
        &mut world,
        2,
        by(BOB, "b", vec![(Role::In, from("/home/bob/other"))]),
    );
    assert_eq!(refused(&why).code, Code::Invalid);
    world.whole(
        3,
        by(BOB, "b", vec![(Role::In, from("/lustre/era5"))]),
        &["n1"],
    );
    assert_eq!(world.read.len(), 1);
    assert_eq!(world.parts_on("n1"), ["forcing/0.0"]);
}

#[test]
fn what_a_job_has_made_of_a_source_is_not_taken_for_the_source() {
    let mut world = World::new(1, Config::default());
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    for job in [1, 2] {
        let change = script("w", 1, vec![(Role::Inout, Single, case.clone())]);
        world.whole(job, change, &["n1"]);
    }
    let read = script("w", 1, vec![(Role::In, Single, case)]);
    assert_eq!(setup(&mut world, 3, read), ControllerReply::Done);
    world.changes.insert("/lustre/case".into(), 1);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    assert!(world.parts_on("n1").contains(&"case/2.0".to_owned()));
    assert_eq!(
        world.read[std::path::Path::new("/lustre/case")],
        world.size,
        "it was read once, for version 0"
    );
}

#[test]
fn what_a_job_has_made_of_a_source_makes_no_space_for_others() {
    let mut world = World::new(1, Config::default());
    world.capacity = 5 << 20;
    world.size = 2 << 20;
    world.open("n1");
    let mut case = dataset("case");
    case.source = Some("/lustre/case".into());
    case.size = Some(2 << 20);
    world.whole(
        1,
        script("w", 1, vec![(Role::Inout, Single, case)]),
        &["n1"],
    );
    let mut made = dataset("made");
    made.size = Some(2 << 20);
    // The input goes, the output made of it stays.
    let makes = |workflow| script(workflow, 1, vec![(Role::Out, Single, made.clone())]);
    world.whole(2, makes("v"), &["n1"]);
    assert_eq!(world.parts_on("n1"), ["made/1.0", "case/1.0"]);
    assert_eq!(setup(&mut world, 3, makes("u")), ControllerReply::Done);
    let reply = world.pre_run(3, &["n1"]);
    assert_eq!(refused(&reply).code, Code::NoSpace);
    assert_eq!(world.parts_on("n1"), ["made/1.0", "case/1.0"]);
}

#[test]
fn ones_own_dataset_of_another_workflow_is_read_by_its_name() {
    let mut world = with_x(1);
    let read = by(ALICE, "other", vec![(Role::In, of("x", "w/x"))]);
    world.whole(2, read, &["n1"]);
    let missing = by(ALICE, "other", vec![(Role::In, of("y", "w/y"))]);
    let why = setup(&mut world, 3, missing);
    assert_eq!(refused(&why).code, Code::NotFound);
}

#[test]
fn projects_have_quotas_of_their_own() {
    let config = Config {
        quota: 1 << 20,
        project_quota: 3 << 20,
        ..Config::default()
    };
    let mut world = World::new(1, config);
    let sized = |mib: u64| {
        let mut data = forcing();
        data.size = Some(mib << 20);
        data
    };
    // More than a user may have.
    world.whole(1, by(ALICE, "a", vec![(Role::Out, sized(2))]), &["n1"]);
    let why = setup(&mut world, 2, by(BOB, "b", vec![(Role::Inout, sized(3))]));
    assert_eq!(refused(&why).code, Code::Quota);
    assert!(refused(&why).text.contains("your project"), "{why:?}");
    // Two jobs together want too much: the second one learns it at its gate.
    let mut second = of("second", "@climate/second");
    second.size = Some(1 << 20);
    let change = by(BOB, "b", vec![(Role::Inout, sized(1))]);
    assert_eq!(setup(&mut world, 3, change), ControllerReply::Done);
    let makes = by(BOB, "b", vec![(Role::Out, second)]);
    assert_eq!(setup(&mut world, 4, makes), ControllerReply::Done);
    assert_eq!(world.pre_run(3, &["n1"]), ControllerReply::Done);
    let why = world.pre_run(4, &["n1"]);
    assert_eq!(refused(&why).code, Code::Quota);
}

#[test]
fn what_is_kept_is_released_and_ends_are_told_once() {
    let mut world = World::new(1, Config::default());
    let mut ever = dataset("ever");
    ever.keep = Keep::Forever;
    world.whole(1, by(ALICE, "w", vec![(Role::Out, ever)]), &["n1"]);
    world.pass(30 * DAY);
    assert_eq!(world.parts_on("n1"), ["ever/1.0"]);
    assert!(world.notifications.is_empty());
    let name = || (Owner::User(ALICE), "w".to_owned(), "ever".to_owned());
    let (owner, workflow, dataset) = name();
    let until = world.now + 3 * DAY * SECOND;
    let keep = ControllerRequest::Keep {
        owner,
        workflow,
        dataset,
        until,
    };
    let (owner, workflow, dataset) = name();
    let release = ControllerRequest::Release {
        owner,
        workflow,
        dataset,
    };
    // Released and then kept three days more: it is notified when two are over.
    let ending =
        |world: &World| match world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Datasets)
        {
            Some(ControllerReply::Datasets(seen)) => seen.first().map(|d| d.ends_soon),
            other => panic!("{other:?}"),
        };
    send_request(&mut world, ALICE, keep);
    assert_eq!(
        send_request(&mut world, ALICE, release.clone()),
        ControllerReply::Done
    );
    assert_eq!(ending(&world), Some(true));
    let (owner, workflow, dataset) = name();
    send_request(
        &mut world,
        ALICE,
        ControllerRequest::Keep {
            owner,
            workflow,
            dataset,
            until,
        },
    );
    assert_eq!(ending(&world), Some(false));
    world.pass(2 * DAY + 60);
    world.pass(60);
    assert_eq!(world.notifications.len(), 1, "{:?}", world.notifications);
    assert!(world.notifications[0].1.contains("tarn data keep"));
    world.pass(DAY);
    assert!(world.parts_on("n1").is_empty());
    assert_eq!(world.notifications.len(), 2);
}

#[test]
fn a_jobs_data_that_ends_soon_is_told_of_with_the_job() {
    let config = Config {
        lease: 2 * DAY * SECOND,
        warning: 36 * 3600 * SECOND,
        ..Config::default()
    };
    let mut world = World::new(1, config);
    let ending =
        |world: &World| match world
            .site
            .answer(ALICE, &[], false, &ControllerRequest::Job(1))
        {
            Some(ControllerReply::Job(job)) => job.ending,
            other => panic!("{other:?}"),
        };
    let makes = by(ALICE, "v", vec![(Role::Out, dataset("y"))]);
    world.whole(1, makes, &["n1"]);
    assert!(ending(&world).is_empty());
    world.pass(13 * 3600);
    let [text] = &ending(&world)[..] else {
        panic!("{:?}", ending(&world));
    };
    assert!(text.contains("`v/y`") && text.contains("tarn data keep"));
    // A job that reads it prolongs its lease, and while it does there is no reason for alarm.
    let read = by(ALICE, "v", vec![(Role::In, dataset("y"))]);
    assert_eq!(setup(&mut world, 2, read), ControllerReply::Done);
    assert!(ending(&world).is_empty());
    over(&mut world, 2);
    assert!(ending(&world).is_empty());
}

#[test]
fn use_is_counted_by_user_and_project_and_day() {
    let mut world = World::new(2, Config::default());
    world.now = 100 * DAY * SECOND;
    world.event(tarn_site::SiteServiceEvent::Passed);
    let mut made = dataset("made");
    made.dest = Some("/lustre/made".into());
    made.keep = Keep::Forever;
    let mut script = by(ALICE, "w", vec![(Role::Out, made)]);
    script.group = PROJECT;
    assert_eq!(setup(&mut world, 1, script), ControllerReply::Done);
    let since = world.now;
    assert_eq!(world.pre_run(1, &["n1", "n2"]), ControllerReply::Done);
    world.pass(3600);
    let used = |world: &World, user: Uid, since: Time| {
        let reply = world
            .site
            .answer(user, &groups(user), false, &ControllerRequest::Usage(since));
        match reply {
            Some(ControllerReply::Usage(all)) => all,
            other => panic!("{other:?}"),
        }
    };
    // While it runs too.
    let (user, project) = (Owner::User(ALICE), Owner::Project(PROJECT));
    let of = |all: &[UsageInfo], owner| all.iter().find(|u| u.owner == owner).cloned();
    let now = used(&world, ALICE, 0);
    assert_eq!(of(&now, user).unwrap().node_seconds, 2 * 3600);
    for stage in [
        Stage::PostRun { ok: true },
        Stage::DataOut,
        Stage::Teardown { hurry: false },
    ] {
        assert_eq!(world.staged(1, stage), ControllerReply::Done);
    }
    world.pass(10 * DAY);
    let all = used(&world, ALICE, 0);
    let own = of(&all, user).unwrap();
    assert_eq!(own.node_seconds, 2 * 3600);
    assert_eq!(own.written_outside, world.size);
    assert!((864_000..=880_000).contains(&own.mib_seconds), "{own:?}");
    // The project has the job's nodes and transfers, not Alice's own use.
    let group = of(&all, project).unwrap();
    assert_eq!(
        (group.node_seconds, group.written_outside, group.mib_seconds),
        (2 * 3600, world.size, 0)
    );
    // Since a day: earlier use does not count.
    let later = used(&world, ALICE, since + 5 * DAY * SECOND);
    let own = of(&later, user).unwrap();
    assert_eq!((own.node_seconds, own.written_outside), (0, 0));
    assert!((431_000..=440_000).contains(&own.mib_seconds), "{own:?}");
    // Bob sees his project's, Carol nothing, root all.
    assert_eq!(used(&world, BOB, 0).len(), 1);
    assert!(used(&world, CAROL, 0).is_empty());
    assert_eq!(used(&world, 0, 0).len(), 2);
    world.check_replay(Config::default());
}

#[test]
fn orphans_are_shown_to_and_removed_by_whom_they_belong_to() {
    let mut world = with_x(1);
    let (part, proof) = world.nodes["n1"].parts.clone().pop_first().unwrap();
    let strange = |owner| Part {
        owner,
        workflow: "lost".into(),
        ..part.clone()
    };
    world.close("n1");
    let store = world.nodes.get_mut("n1").unwrap();
    for owner in [Owner::User(ALICE), Owner::Project(PROJECT)] {
        store.parts.insert(strange(owner), proof.clone());
    }
    world.open("n1");
    world.settle();
    let seen = |world: &World, user: Uid| match world.site.answer(
        user,
        &groups(user),
        false,
        &ControllerRequest::Orphans,
    ) {
        Some(ControllerReply::Orphans(seen)) => seen.len(),
        other => panic!("{other:?}"),
    };
    let counts = [ALICE, BOB, CAROL, 0].map(|user| seen(&world, user));
    assert_eq!(counts, [2, 1, 0, 2]);
    for (user, gone, left) in [(CAROL, 0, 3), (BOB, 1, 2), (ALICE, 1, 1)] {
        match send_request(&mut world, user, ControllerRequest::RemoveOrphans) {
            ControllerReply::Orphans(all) => assert_eq!(all.len(), gone),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.nodes["n1"].parts.len(), left);
    }
    world.check_replay(Config::default());
}

#[test]
fn what_is_not_told_of_whom_a_node_tells_little_is_where_it_was() {
    for is_partial in [true, false] {
        let mut world = with_x(2);
        let (part, proof) = world.nodes["n1"].parts.clone().pop_first().unwrap();
        world.close("n1");
        let store = world.nodes.get_mut("n1").unwrap();
        let kept = std::mem::take(&mut store.parts);
        // Nor is content without the name of a dataset anybody's, whatever its origin.
        let forged = Part {
            workflow: "a\nb".into(),
            ..part.clone()
        };
        store.parts.insert(forged, proof);
        store.partial = Vec::from_iter(is_partial.then_some(part.owner));
        world.open("n1");
        world.settle();
        world.nodes.get_mut("n1").unwrap().parts = kept;
        let Some(ControllerReply::Nodes(nodes)) =
            world.site.answer(0, &[], false, &ControllerRequest::Nodes)
        else {
            panic!("no nodes");
        };
        assert_eq!(nodes[0].orphans, 0);
        let reads = by(ALICE, "w", vec![(Role::In, dataset("x"))]);
        assert_eq!(
            world.staged(9, Stage::Setup(Box::new(reads))),
            ControllerReply::Done
        );
        let reply = world.pre_run(9, &["n2"]);
        assert_eq!(reply == ControllerReply::Done, is_partial, "{reply:?}");
        world.check_replay(Config::default());
    }
}

#[test]
fn what_is_scattered_is_promised_once_for_a_quota() {
    let config = Config {
        quota: 4 << 20,
        ..Config::default()
    };
    let mut world = World::new(2, config);
    let mut data = dataset("x");
    data.size = Some(3 << 20);
    data.scatter = Some(rule());
    let makes = script("w", 2, vec![(Role::Out, Scatter, data)]);
    world.whole(1, makes, &["n1", "n2"]);
}
