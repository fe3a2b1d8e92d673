//! A tarnd that looks after the checkpoints of programs that died: real processes, killed.

mod common;
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;

use common::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tarn_checkpoint::version_catalog::VersionCatalog;
use tarn_checkpoint::{
    CheckpointSession, Options, PersistenceLevel, Properties, StagingShare, VersionId,
};

/// Elements of an object whose de-staging takes some time.
const LARGE: usize = 2 << 20;

/// The newest version of a program of one rank, and where it is.
fn newest(dir: &Path, run: &str) -> Option<(VersionId, Is)> {
    let (tier, memory) = (dir.join("tier"), dir.join("memory"));
    let version_catalog = VersionCatalog::open(&tier, &memory).unwrap();
    let versions = version_catalog
        .run(run.as_ref())?
        .versions(&mut |why| panic!("{why}"));
    let ((id, _), found) = versions.into_iter().next_back()?;
    let is = match (found.level, found.gone.is_empty()) {
        (PersistenceLevel::Committed, true) => Is::InMemory,
        (PersistenceLevel::Committed, false) => Is::Lost,
        _ => Is::OnTheTier,
    };
    Some((id, is))
}

/// The place of a version that was staged.
#[derive(Debug, PartialEq)]
enum Is {
    OnTheTier,
    InMemory,
    Lost,
}

fn until_durable(dir: &Path, run: &str) -> VersionId {
    let until = Instant::now() + LONG;
    loop {
        match newest(dir, run) {
            Some((id, Is::OnTheTier)) => return id,
            other => assert!(Instant::now() < until, "{other:?} is not on the tier"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A tarnd that looks after the tier and memory in its folder.
fn looks_after() -> Daemon {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for folder in ["tier", "memory"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
    }
    let path = |name: &str| dir.path().join(name).display().to_string();
    let places = format!("{}:{}", path("tier"), path("memory"));
    Daemon::start_in(dir, "64MiB", &["--checkpoints", &places])
}

fn loses_memory(daemon: &Daemon) {
    fs::remove_dir_all(daemon.path("memory")).unwrap();
    fs::create_dir(daemon.path("memory")).unwrap();
}

/// Starts a program that commits until it is killed; returns the step from which it does.
fn endless(program: &Path, dir: &Path) -> (Child, u64) {
    let mut command = Command::new(program);
    // Staged, and without a helper: the last commit waits in memory.
    command.arg(dir).args(["endless", "8"]);
    command.env("RANK", "0").env("RANKS", "1");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let from = first.strip_prefix("restored ").expect(&first);
    for _ in 0..3 {
        assert!(lines.next().unwrap().unwrap().starts_with("committed "));
    }
    (child, from.parse().unwrap())
}

/// Starts it and kills it, until something was staged then: the step that it first went on from, and the newest that it has committed.
fn killed(program: &Path, dir: &Path) -> (u64, u64) {
    let mut first = None;
    for _ in 0..50 {
        let (mut child, from) = endless(program, dir);
        child.kill().unwrap();
        child.wait().unwrap();
        let first = *first.get_or_insert(from);
        let (id, is) = newest(dir, "c").expect("a version");
        if is == Is::InMemory {
            return (first, from + id.number);
        }
        // It was killed between two commits.
    }
    panic!("nothing was ever staged");
}

#[test]
fn a_killed_program_goes_on_from_its_newest_version_though_the_node_has_lost_its_memory() {
    let mut daemon = looks_after();
    let program = daemon.path("phx");
    linked::output_of(&mut linked::compiler(
        "cc",
        &["-std=c11", "-D_POSIX_C_SOURCE=200809L"],
        &["tests/phx.c"],
        &program,
    ));
    // No tarnd de-stages it: only the version before is left.
    daemon.kill();
    let dir = daemon.dir.path().to_owned();
    let (_, step) = killed(&program, &dir);
    loses_memory(&daemon);
    let (from, next) = killed(&program, &dir);
    assert_eq!(from, step - 1);
    // Looked after since then.
    daemon.again();
    until_durable(&dir, "c");
    loses_memory(&daemon);
    let (mut child, from) = endless(&program, &dir);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(from, next);
}

/// A program of this process: a session that is dropped ends as if it was killed.
fn start(daemon: &Daemon, from: Option<VersionId>) -> VersionId {
    let mut session = CheckpointSession::begin(Options {
        run: Some("large".into()),
        tier: Some(daemon.path("tier")),
        memory: Some(daemon.path("memory")),
        staging: Some(StagingShare::All),
        helper: false,
        ..Options::default()
    })
    .unwrap();
    session
        .create("rows", LARGE * 8, 8, Properties::default())
        .unwrap();
    assert_eq!(session.restart(None).unwrap(), from);
    let rows = session.values::<u64>("rows").unwrap();
    assert!(from.is_none() || (0..).zip(&*rows).all(|(i, x)| *x == i * 3));
    (0..).zip(rows).for_each(|(i, x)| *x = i * 3);
    session.commit().unwrap().id
}

#[test]
fn a_tarnd_that_is_killed_as_it_looks_after_a_program_loses_nothing_and_starts_may_come_in_between()
{
    let mut daemon = looks_after();
    daemon.kill();
    let mut version = start(&daemon, None);
    for kill in 0..12 {
        daemon.again();
        std::thread::sleep(Duration::from_millis(kill * 10));
        if kill % 4 == 3 {
            version = start(&daemon, Some(version));
        }
        daemon.kill();
        let (id, is) = newest(daemon.dir.path(), "large").expect("a version");
        assert!(id == version && is != Is::Lost, "{id} is {is:?}");
    }
    daemon.again();
    assert_eq!(until_durable(daemon.dir.path(), "large"), version);
    loses_memory(&daemon);
    start(&daemon, Some(version));
}
