//! One step on one node: its view, and its results.

use crate::Test;
use crate::bench::{
    Bench, committed, data, failed, namespaces_allowed, step, tier_ref, tree, used,
};
use std::time::{Duration, Instant};
use tarn_node::Namespaces;
use tarn_types::action::Do;
use tarn_types::event::{AttemptOutcome, Event, RunErrorKind};
use tarn_types::id::{InstanceId, StepId};
use tarn_types::layout::TierDir;
use tarn_types::units::SECOND;
use tarn_types::workflow::{CheckpointMethod, Dataset, Distribution, Restart, Role, Step};

pub(crate) const TESTS: &[Test] = &[
    (
        "running::output_is_committed_and_scratch_reported",
        output_is_committed_and_scratch_reported,
    ),
    (
        "running::the_environment_is_as_documented",
        the_environment_is_as_documented,
    ),
    (
        "running::several_parts_are_one_view",
        several_parts_are_one_view,
    ),
    (
        "running::inout_keeps_its_pre_image",
        inout_keeps_its_pre_image,
    ),
    (
        "running::a_failing_step_tells_status_and_log",
        a_failing_step_tells_status_and_log,
    ),
    ("running::a_signal_is_named", a_signal_is_named),
    (
        "running::a_step_past_its_time_is_ended_with_all_it_started",
        a_step_past_its_time_is_ended,
    ),
    (
        "running::missing_or_empty_output_is_a_failure",
        missing_or_empty_output_is_a_failure,
    ),
    (
        "running::an_output_may_be_removed_and_made_anew",
        an_output_may_be_made_anew,
    ),
    (
        "running::what_lies_beside_the_datasets_is_told",
        what_lies_beside_is_told,
    ),
    (
        "running::inputs_cannot_be_changed_in_namespaces",
        inputs_cannot_be_changed_in_namespaces,
    ),
    (
        "running::changed_inputs_are_found_without_namespaces",
        changed_inputs_are_found_without_namespaces,
    ),
    (
        "running::a_stopped_step_ends_soon",
        a_stopped_step_ends_soon,
    ),
    (
        "running::a_prelude_that_fails_fails_the_step",
        a_prelude_that_fails_fails_the_step,
    ),
    (
        "running::no_process_survives_its_step",
        no_process_survives_its_step,
    ),
    ("running::usage_counts_children", usage_counts_children),
    (
        "running::outputs_that_only_fit_alone_are_not_kept_together",
        only_alone,
    ),
    ("running::the_kernel_would_end_a_step_first", expendable),
    (
        "running::checkpoints_that_go_are_out_of_the_way_of_the_next_attempt",
        checkpoints_that_go,
    ),
];

/// Both ways in which a step can be run here.
fn both(mut test: impl FnMut(Namespaces)) {
    test(Namespaces::Auto);
    test(Namespaces::Off);
}

fn source(bench: &mut Bench, at: usize, name: &str) {
    bench.workflow.data[at] = Dataset {
        source: Some(bench.path(name)),
        ..bench.workflow.data[at].clone()
    };
}

fn nothing_left(bench: &Bench) {
    let work = TierDir::new(&bench.path("tier"), "ws", "n0").work();
    let left = std::fs::read_dir(&work).map_or(0, Iterator::count);
    assert_eq!(left, 0, "{}", work.display());
}

fn checkpoints_that_go() {
    let alone = "cd $TARN_CHECKPOINTS && test -z \"$(ls)\" && touch of.$TARN_ATTEMPT";
    let restart = Some(Restart {
        buddy: false,
        from: CheckpointMethod::Files,
        space: 0,
        every: None,
        alone: false,
    });
    let kept = Step {
        restart,
        ..step(alone, vec![])
    };
    let bench = Bench::new(vec![], vec![kept]);
    let mut world = bench.world();
    for attempt in 1..=2 {
        world.begin(0, attempt, &[0], vec![vec![]]);
        let (ended, _) = world.ended();
        assert!(
            matches!(ended, AttemptOutcome::Committed { .. }),
            "{ended:?}"
        );
        if attempt == 1 {
            let instance = InstanceId {
                step: StepId(0),
                index: 0,
            };
            let at = vec![tier_ref(0)];
            world.perform(Do::Forget { instance, at });
        }
    }
    // Dropping the world removes the rest.
    drop(world);
    let there = TierDir::new(&bench.path("tier"), "ws", "n0").checkpoints();
    assert!(there.join("r1/work-0/of.2").exists());
    nothing_left(&bench);
}

/// Each would fit: the second to end finds the first one's output there, and the error has a hint.
fn only_alone() {
    let write = "head -c 600000 /dev/zero > $TARN_made/f; sleep 0.3";
    let out = |at| vec![used(at, Role::Out, Distribution::Single)];
    let steps = vec![
        step(write, out(0)),
        step(&write.replace("made", "more"), out(1)),
    ];
    let mut bench = Bench::new(vec![data("made"), data("more")], steps);
    bench.capacity = 1_150_000;
    let mut world = bench.world();
    world.begin_in(0, 1, &[0], vec![vec![]], 1000);
    world.begin_in(1, 1, &[0], vec![vec![]], 1000);
    let (kept, not): (Vec<_>, Vec<_>) = [world.ended(), world.ended()]
        .into_iter()
        .partition(|(ended, _)| matches!(ended, AttemptOutcome::Committed { .. }));
    assert_eq!(kept.len(), 1, "{not:?}");
    let (kind, message, _) = failed(not.into_iter().next().expect("the other"));
    assert_eq!(kind, RunErrorKind::NoSpace);
    assert!(
        message.contains("are stored there or on their way") && message.contains("`size`"),
        "{message}"
    );
    nothing_left(&bench);
}

fn expendable() {
    both(|namespaces| {
        let out = used(0, Role::Out, Distribution::Single);
        let check = "touch $TARN_made/f; [ $(cat /proc/self/oom_score_adj) -ge 500 ]";
        let mut bench = Bench::new(vec![data("made")], vec![step(check, vec![out])]);
        bench.namespaces = namespaces;
        committed(bench.world().run(vec![vec![]]));
    });
}

fn output_is_committed_and_scratch_reported() {
    both(|namespaces| {
        let out = used(0, Role::Out, Distribution::Single);
        let mut bench = Bench::new(
            vec![data("made")],
            vec![step(
                "mkdir $TARN_made/d; echo hi > $TARN_made/d/f; echo xy > junk",
                vec![out],
            )],
        );
        bench.namespaces = namespaces;
        let mut world = bench.world();
        let (ended, usage) = world.run(vec![vec![]]);
        let AttemptOutcome::Committed {
            outputs,
            undeclared,
        } = ended
        else {
            panic!("{ended:?}");
        };
        assert_eq!(
            (undeclared.files, undeclared.bytes, undeclared.names),
            (1, 3, vec!["junk".to_owned()])
        );
        let [(info, tier_refs)] = &outputs[0].parts[..] else {
            panic!("{outputs:?}");
        };
        assert_eq!((info.bytes, info.files, info.seq), (3, 1, 0));
        assert_eq!(tier_refs, &[tier_ref(0)]);
        assert!(info.hash.is_some() && usage.wall > 0);
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&info.key);
        assert_eq!(tree(&part).get("d/f").map(String::as_str), Some("hi\n"));
        nothing_left(&bench);
    });
}

fn the_environment_is_as_documented() {
    let run = r#"for v in STEP RUN NODE NODES TASKS CORES ATTEMPT; do eval "echo $v=\$TARN_$v"; done > $TARN_made/env
        cat $TARN_HOSTFILE >> $TARN_made/env
        test "$(pwd)" = "$TARN_SCRATCH" && test "$TMPDIR" = "$TARN_SCRATCH" && tool >> $TARN_made/env
        echo "$OMP_NUM_THREADS $MINE $(readlink /proc/self/fd/0)" >> $TARN_made/env"#;
    both(|namespaces| {
        let mut wanted = step(run, vec![used(0, Role::Out, Distribution::Single)]);
        wanted.env.insert("MINE".into(), "own".into());
        let mut bench = Bench::new(vec![data("made")], vec![wanted]);
        // Found because the workflow's folder leads PATH.
        let tool = bench.write("tool", "#!/bin/sh\necho tool\n");
        std::fs::set_permissions(tool, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        bench.namespaces = namespaces;
        let outputs = committed(bench.world().run(vec![vec![]]));
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&outputs[0].parts[0].0.key);
        let text = std::fs::read_to_string(part.join("env")).unwrap();
        let omp = std::env::var("OMP_NUM_THREADS").unwrap_or_else(|_| "1".into());
        let rest = format!("n0 slots=1\ntool\n{omp} own /dev/null\n");
        assert_eq!(
            text,
            format!("STEP=work\nRUN=r1\nNODE=n0\nNODES=1\nTASKS=1\nCORES=1\nATTEMPT=1\n{rest}")
        );
    });
}

fn several_parts_are_one_view() {
    both(|namespaces| {
        let uses = vec![
            used(0, Role::In, Distribution::Single),
            used(1, Role::Out, Distribution::Single),
        ];
        let mut bench = Bench::new(
            vec![crate::bench::ranked("raw"), data("made")],
            vec![step(
                "cat $TARN_raw/p0/f $TARN_raw/p1/f $TARN_raw/c > $TARN_made/all",
                uses,
            )],
        );
        bench.write("raw/p0/f", "a");
        bench.write("raw/p1/f", "b");
        bench.write("raw/c", "c");
        source(&mut bench, 0, "raw");
        bench.namespaces = namespaces;
        let mut world = bench.world();
        let view = world.stage(0, 0);
        assert_eq!(view.len(), 3);
        let outputs = committed(world.run(vec![vec![view], vec![]]));
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&outputs[0].parts[0].0.key);
        assert_eq!(tree(&part)["all"], "abc");
    });
}

fn inout_keeps_its_pre_image() {
    both(|namespaces| {
        let uses = vec![used(0, Role::Inout, Distribution::Single)];
        let mut bench = Bench::new(
            vec![data("d")],
            vec![step("echo new > $TARN_d/f; exit $FAIL", uses)],
        );
        bench.workflow.steps[0]
            .env
            .insert("FAIL".into(), "1".into());
        bench.write("raw/f", "old\n");
        source(&mut bench, 0, "raw");
        bench.namespaces = namespaces;
        let mut world = bench.world();
        let view = world.stage(0, 0);
        let before = TierDir::new(&bench.path("tier"), "ws", "n0").part(&view[0].key);
        assert_eq!(
            failed(world.run(vec![vec![view.clone()]])).0,
            RunErrorKind::Exit
        );
        assert_eq!(tree(&before)["f"], "old\n");
        drop(world);
        bench.workflow.steps[0]
            .env
            .insert("FAIL".into(), "0".into());
        let mut world = bench.world();
        let outputs = committed(world.run(vec![vec![view]]));
        assert_eq!(tree(&before)["f"], "old\n");
        let after = TierDir::new(&bench.path("tier"), "ws", "n0").part(&outputs[0].parts[0].0.key);
        assert_eq!(tree(&after)["f"], "new\n");
    });
}

fn a_failing_step_tells_status_and_log() {
    both(|namespaces| {
        let mut bench = Bench::new(
            vec![],
            vec![step("echo said; echo loud >&2; exit 7", vec![])],
        );
        bench.namespaces = namespaces;
        let (kind, message, log) = failed(bench.world().run(vec![]));
        assert_eq!((kind, log.as_str()), (RunErrorKind::Exit, "said\nloud\n"));
        assert!(
            message.contains("`work`") && message.contains("status 7"),
            "{message}"
        );
        nothing_left(&bench);
    });
}

fn a_signal_is_named() {
    both(|namespaces| {
        let mut bench = Bench::new(vec![], vec![step("kill -SEGV $$", vec![])]);
        bench.namespaces = namespaces;
        let (kind, message, _) = failed(bench.world().run(vec![]));
        assert_eq!(kind, RunErrorKind::Signal);
        assert!(message.contains("segmentation fault"), "{message}");
    });
}

fn a_step_past_its_time_is_ended() {
    both(|namespaces| {
        // SIGTERM reaches the children too: `wait` returns and the shell ends in good order.
        let run = "trap 'echo bye; exit 0' TERM; sleep 100 & wait";
        let mut slow = step(run, vec![]);
        // Enough for a shell to begin, however busy the machine is.
        slow.time = Some(3 * SECOND);
        let mut bench = Bench::new(vec![], vec![slow]);
        bench.namespaces = namespaces;
        let began = Instant::now();
        let (kind, message, log) = failed(bench.world().run(vec![]));
        assert_eq!(
            (kind, log.as_str()),
            (RunErrorKind::TimedOut, "bye\n"),
            "{message}"
        );
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

fn missing_or_empty_output_is_a_failure() {
    for run in ["true", "rmdir $TARN_made"] {
        both(|namespaces| {
            let out = used(0, Role::Out, Distribution::Single);
            let mut bench = Bench::new(vec![data("made")], vec![step(run, vec![out])]);
            bench.namespaces = namespaces;
            let (kind, message, _) = failed(bench.world().run(vec![vec![]]));
            // A mount point cannot be removed: then the command itself fails.
            let wanted = [RunErrorKind::NoOutput, RunErrorKind::Exit];
            assert!(
                kind == wanted[0] || (kind == wanted[1] && run != "true"),
                "{kind:?} {message}"
            );
        });
    }
}

fn an_output_may_be_made_anew() {
    both(|namespaces| {
        for run in [
            "rm -rf $TARN_made; mkdir $TARN_made; echo x > $TARN_made/x",
            "mkdir new; echo x > new/x; rm -rf $TARN_made; mv new $TARN_made",
            "mkdir $TARN_made.new; echo x > $TARN_made.new/x; rmdir $TARN_made; mv $TARN_made.new $TARN_made",
        ] {
            let out = used(0, Role::Out, Distribution::Single);
            let mut bench = Bench::new(vec![data("made")], vec![step(run, vec![out])]);
            bench.namespaces = namespaces;
            let outputs = committed(bench.world().run(vec![vec![]]));
            let key = &outputs[0].parts[0].0.key;
            let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(key);
            assert_eq!(
                tree(&part).into_iter().collect::<Vec<_>>(),
                [("x".to_owned(), "x\n".to_owned())]
            );
            nothing_left(&bench);
        }
        for run in [
            "rm -rf $TARN_made; mkdir else; echo > else/x; ln -s $PWD/else $TARN_made",
            "rm -rf $TARN_made; echo > $TARN_made",
        ] {
            let out = used(0, Role::Out, Distribution::Single);
            let mut bench = Bench::new(vec![data("made")], vec![step(run, vec![out])]);
            bench.namespaces = namespaces;
            let (kind, message, _) = failed(bench.world().run(vec![vec![]]));
            assert_eq!(kind, RunErrorKind::NoOutput, "{message}");
            assert!(
                message.contains("in the place of the folder of its output `made`"),
                "{message}"
            );
        }
    });
}

/// A folder beside the datasets is none, and is reported as files in the scratch folder are.
fn what_lies_beside_is_told() {
    let out = used(0, Role::Out, Distribution::Single);
    let run = "echo x > $TARN_made/x; mkdir ${TARN_made}2; echo lost > ${TARN_made}2/y";
    let bench = Bench::new(vec![data("made")], vec![step(run, vec![out])]);
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    let (ended, _) = world.run(vec![vec![]]);
    let AttemptOutcome::Committed { undeclared, .. } = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(
        (undeclared.files, undeclared.names),
        (1, vec!["made2/y".to_owned()])
    );
    nothing_left(&bench);
}

fn inputs_cannot_be_changed_in_namespaces() {
    let uses = vec![used(0, Role::In, Distribution::Single)];
    let mut bench = Bench::new(vec![data("d")], vec![step("echo no >> $TARN_d/f", uses)]);
    bench.write("raw/f", "old\n");
    source(&mut bench, 0, "raw");
    let mut world = bench.world();
    if !namespaces_allowed(&world) {
        return;
    }
    let view = world.stage(0, 0);
    let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&view[0].key);
    let (kind, _, log) = failed(world.run(vec![vec![view]]));
    assert_eq!(kind, RunErrorKind::Exit);
    assert!(log.contains("Read-only"), "{log}");
    assert_eq!(tree(&part)["f"], "old\n");
}

fn changed_inputs_are_found_without_namespaces() {
    for run in [
        "echo no >> $TARN_d/f",
        "rm $TARN_d/f",
        "echo more > $TARN_d/g",
        "chmod 600 $TARN_d/f; exit 1",
    ] {
        let uses = vec![used(0, Role::In, Distribution::Single)];
        let mut bench = Bench::new(vec![data("d")], vec![step(run, uses)]);
        bench.write("raw/f", "old\n");
        source(&mut bench, 0, "raw");
        bench.namespaces = Namespaces::Off;
        let mut world = bench.world();
        let view = world.stage(0, 0);
        let part = TierDir::new(&bench.path("tier"), "ws", "n0").part(&view[0].key);
        world.begin(0, 1, &[0], vec![vec![view]]);
        let event = world.next();
        assert!(matches!(event, Event::Evicted { .. }), "{event:?}");
        let (kind, message, _) = failed(world.ended());
        assert_eq!(kind, RunErrorKind::InputChanged, "{run}: {message}");
        assert!(!part.exists());
    }
}

fn a_stopped_step_ends_soon() {
    both(|namespaces| {
        let mut bench = Bench::new(vec![], vec![step("echo on; sleep 100", vec![])]);
        bench.namespaces = namespaces;
        let mut world = bench.world();
        world.begin(0, 1, &[0], vec![]);
        let begun = Instant::now();
        while world.progress().steps().len() != 1 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        let began = Instant::now();
        world.perform(Do::Stop {
            instance: InstanceId {
                step: StepId(0),
                index: 0,
            },
            attempt: 1,
        });
        assert_eq!(failed(world.ended()).0, RunErrorKind::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(world.progress().steps().is_empty());
    });
}

fn a_prelude_that_fails_fails_the_step() {
    let mut bad = step("echo ran", vec![]);
    bad.prelude = Some("false\ntrue".into());
    let bench = Bench::new(vec![], vec![bad]);
    let (kind, _, log) = failed(bench.world().run(vec![]));
    assert_eq!((kind, log.as_str()), (RunErrorKind::Exit, ""));
    // The prelude may use unset variables; the command may not.
    let mut good = step("test $X = 1; echo $NOT_SET", vec![]);
    good.prelude = Some("X=1; echo $NOT_SET | false | true".into());
    let (kind, _, log) = failed(Bench::new(vec![], vec![good]).world().run(vec![]));
    assert_eq!(kind, RunErrorKind::Exit);
    assert!(log.contains("NOT_SET: unbound variable"), "{log}");
}

fn no_process_survives_its_step() {
    both(|namespaces| {
        // A daemon with a session of its own, which would survive a mere process group.
        let out = used(0, Role::Out, Distribution::Single);
        let run = "setsid sh -c 'while :; do echo > $TARN_WORKFLOW_DIR/beat; sleep 0.05; done' &
            while ! test -e $TARN_WORKFLOW_DIR/beat; do sleep 0.02; done; echo x > $TARN_made/x";
        let mut bench = Bench::new(vec![data("made")], vec![step(run, vec![out])]);
        bench.namespaces = namespaces;
        committed(bench.world().run(vec![vec![]]));
        std::fs::remove_file(bench.path("beat")).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(!bench.path("beat").exists());
    });
}

fn usage_counts_children() {
    both(|namespaces| {
        let run = "sh -c 'i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done'; head -c 3000000 /dev/zero > junk";
        let mut bench = Bench::new(vec![], vec![step(run, vec![])]);
        bench.namespaces = namespaces;
        let (ended, usage) = bench.world().run(vec![]);
        assert!(matches!(ended, AttemptOutcome::Committed { .. }));
        assert!(usage.user + usage.system > 5_000_000, "{usage:?}");
        assert!(
            usage.written >= 3_000_000 && usage.read >= 3_000_000,
            "{usage:?}"
        );
        assert!(usage.memory > 100_000 && usage.wall > 0, "{usage:?}");
    });
}
