//! A run that is killed, and what the next one finds.

use crate::Test;
use crate::bench::{Bench, committed, data, held, of_another_boot, step, tier_ref, used};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tarn_node::Namespaces;
use tarn_types::action::Do;
use tarn_types::event::{AttemptOutcome, Event};
use tarn_types::id::{InstanceId, StepId};
use tarn_types::layout::TierDir;
use tarn_types::nodes::Staying;
use tarn_types::part::{Place, StoreKey};
use tarn_types::workflow::{Distribution, Role};

pub(crate) const TESTS: &[Test] = &[
    (
        "crashes::a_killed_run_takes_its_steps_along",
        a_killed_run_takes_its_steps_along,
    ),
    (
        "crashes::signals_become_events_and_the_second_kills",
        signals_become_events_and_the_second_kills,
    ),
    (
        "crashes::inventory_finds_what_is_whole_and_clean_removes_the_rest",
        inventory_and_clean,
    ),
];

/// The first argument that makes this program run one slow step, to be killed.
pub(crate) const VICTIM: &str = "victim";

fn slow(dir: &Path, namespaces: Namespaces) -> Bench {
    // The child has a session of its own; it ticks until it dies.
    let run = "trap '' TERM; setsid sh -c 'while true; do date +%N > $TARN_WORKFLOW_DIR/tick; sleep 0.02; done' & sleep 100";
    let mut bench = Bench::at(dir, vec![], vec![step(run, vec![])]);
    bench.namespaces = namespaces;
    bench
}

pub(crate) fn victim(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let dir = arguments.next().map(PathBuf::from).expect("a folder");
    let namespaces = match arguments.next() {
        Some(_) => Namespaces::Off,
        None => Namespaces::Auto,
    };
    let mut bench = slow(&dir, namespaces);
    bench.signals = true;
    let mut world = bench.world();
    world.begin(0, 1, &[0], vec![]);
    loop {
        let event = world.next();
        println!("{}", word(&event));
        if matches!(event, Event::Ended { .. }) {
            return ExitCode::SUCCESS;
        }
        // The reaction of an engine.
        world.perform(Do::Stop {
            instance: InstanceId {
                step: StepId(0),
                index: 0,
            },
            attempt: 1,
        });
    }
}

fn word(event: &Event) -> String {
    match event {
        Event::Interrupted { signal } => format!("signal {signal}"),
        Event::Ended {
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        } => format!("{:?}", failure.kind),
        other => format!("{other:?}"),
    }
}

fn signals_become_events_and_the_second_kills() {
    let guard = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg(VICTIM)
        .arg(guard.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    await_tick(guard.path());
    let began = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(line(), "signal 2");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(line(), "signal 15");
    assert_eq!(line(), "Cancelled");
    // The step ignores SIGTERM: without the second signal it would have had its grace.
    assert!(began.elapsed() < tarn_node::GRACE / 2);
    assert!(child.wait().unwrap().success());
}

fn tick(dir: &Path) -> Option<String> {
    std::fs::read_to_string(dir.join("tick"))
        .ok()
        .filter(|t| !t.is_empty())
}

fn await_tick(dir: &Path) {
    let began = Instant::now();
    while tick(dir).is_none() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the step never began"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_killed_run_takes_its_steps_along() {
    for off in [false, true] {
        let guard = tempfile::tempdir().unwrap();
        let dir = guard.path();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(VICTIM).arg(dir).args(off.then_some("off"));
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        await_tick(dir);
        child.kill().unwrap();
        child.wait().unwrap();
        let namespaces = if off {
            Namespaces::Off
        } else {
            Namespaces::Auto
        };
        let bench = slow(dir, namespaces);
        let work = TierDir::new(&bench.path("tier"), "ws", "n0").work();
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1);
        let mut world = bench.world();
        let cleaned = world.clean(&Staying {
            resumed: true,
            ..Staying::default()
        });
        assert!(cleaned.trouble.is_empty(), "{:?}", cleaned.trouble);
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
        std::fs::remove_file(dir.join("tick")).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(tick(dir), None, "something of the killed run still runs");
    }
}

fn inventory_and_clean() {
    let uses = vec![
        used(0, Role::Out, Distribution::Single),
        used(1, Role::Out, Distribution::Single),
    ];
    let bench = Bench::new(
        vec![data("a"), data("b")],
        vec![step("echo a > $TARN_a/f; echo b > $TARN_b/f", uses)],
    );
    let mut world = bench.world();
    let outputs = committed(world.run(vec![vec![], vec![]]));
    let part = |n: usize| {
        let info = &outputs[n].parts[0].0;
        let held = held(n as u32, 1, std::slice::from_ref(info), 0).remove(0);
        (held.part, held.key, Place::Node(tier_ref(0)))
    };
    let dir = TierDir::new(&bench.path("tier"), "ws", "n0");
    drop(world);
    let mut world = bench.world();
    let all = [part(0), part(1)];
    assert_eq!(world.inventory(&all).len(), 2);
    // Another size is seen without reading; an unknown key is not there.
    std::fs::write(dir.part(&all[1].1).join("f"), "longer").unwrap();
    let stranger = (
        all[0].0,
        StoreKey("r9.s9.a9.0".into()),
        Place::Node(tier_ref(0)),
    );
    let found = world.inventory(&[all[0].clone(), all[1].clone(), stranger]);
    assert_eq!(found, [(all[0].0, Place::Node(tier_ref(0)))]);
    // The same size and time are seen after a reboot, when contents are read: also after another inventory, of other replicas.
    let file = dir.part(&all[0].1).join("f");
    let time = file.metadata().unwrap().modified().unwrap();
    std::fs::write(&file, "x\n").unwrap();
    let written = std::fs::File::options().write(true).open(&file).unwrap();
    written.set_modified(time).unwrap();
    of_another_boot(&dir.part(&all[0].1));
    assert_eq!(world.inventory(&[]), []);
    assert_eq!(world.inventory(&all), []);
    std::fs::create_dir_all(dir.incoming().join("half")).unwrap();
    std::fs::create_dir_all(dir.incoming().join("stale")).unwrap();
    let (old, pinned) = (
        bench.path("tier/ws/n9/parts/old"),
        bench.path("tier/ws/n9/parts/pinned"),
    );
    for folder in [&old, &pinned, &dir.part(&StoreKey("pinned".into()))] {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("f"), "f").unwrap();
    }
    let keep = [(all[0].1.clone(), Place::Node(tier_ref(0)))]
        .into_iter()
        .collect();
    let resumable = [StoreKey("half".into())].into_iter().collect();
    let protected = [pinned.clone(), dir.part(&StoreKey("pinned".into()))];
    let cleaned = world.clean(&Staying {
        keep,
        resumable,
        protected: protected.into_iter().collect(),
        resumed: true,
        is_without: true,
        ..Staying::default()
    });
    assert!(cleaned.trouble.is_empty(), "{:?}", cleaned.trouble);
    assert_eq!(cleaned.removed, [dir.part(&all[1].1), old.clone()]);
    assert!(cleaned.aside[&tier_ref(0)] > 0, "{:?}", cleaned.aside);
    let names = |p: &Path| {
        let all = std::fs::read_dir(p).unwrap().flatten();
        all.map(|e| e.file_name().to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    let mut parts = names(&dir.parts());
    parts.sort();
    assert_eq!(parts, ["pinned".into(), all[0].1.0.clone()]);
    assert_eq!(names(&dir.incoming()), ["half"]);
    assert!(!old.exists() && pinned.join("f").exists());
    assert_eq!(names(&bench.state().manifests("ws")), [all[0].1.0.clone()]);
}
