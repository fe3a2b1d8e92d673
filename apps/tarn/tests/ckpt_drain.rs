//! `tarn ckpt drain` by the real binary: the versions that a killed program has left go to an external store, and outlive its nodes.

mod common;

use common::{Ran, Site};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tarn_checkpoint::{
    CheckpointError, CheckpointSession, Options, PersistenceLevel, Properties, Shape, StagingShare,
    VersionId,
};
use tarn_checkpoint_core::{arena, flush};
use tarn_media::ExternalFolder;

/// Of all ranks together.
const ROWS: usize = 300_000;

/// A tier, memory and a store.
struct Program {
    site: Site,
}

fn value(row: usize, step: u64) -> u64 {
    row as u64 * 7 + (step << 40)
}

impl Program {
    fn new() -> Self {
        let site = Site::new("");
        fs::create_dir(site.path("store")).unwrap();
        Self { site }
    }

    fn begin(&self, rank: u32, ranks: u32, flush_every: Option<u64>) -> CheckpointSession {
        let mut session = CheckpointSession::begin(Options {
            rank,
            ranks,
            run: Some("heat".into()),
            tier: Some(self.site.path("tier")),
            memory: Some(self.site.path("memory")),
            staging: Some(StagingShare::All),
            helper: flush_every.is_some(),
            external: Some(self.site.path("store")),
            flush_every,
            ..Options::default()
        })
        .unwrap();
        let rows = ROWS / ranks as usize;
        let shaped = |shape| Properties {
            shape,
            ..Properties::default()
        };
        let of = shaped(Shape::Irregular(8));
        session.create("rows", rows * 8, 8, of).unwrap();
        let of = shaped(Shape::Replicated);
        session.create("step", 8, 8, of).unwrap();
        session
    }

    /// A start: all ranks continue from the newest version, if it is this one, and commit so many steps; then `each`. A session
    /// that is dropped ends as if it was killed.
    fn start(
        &self,
        ranks: u32,
        from: Option<VersionId>,
        steps: u64,
        each: impl Fn(CheckpointSession) + Sync,
    ) {
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let each = &each;
                scope.spawn(move || {
                    let mut session = self.begin(rank, ranks, None);
                    assert_eq!(session.restart(None).unwrap(), from);
                    let first = ROWS / ranks as usize * rank as usize;
                    let mut step = session.values::<u64>("step").unwrap()[0];
                    let rows = session.values::<u64>("rows").unwrap();
                    if from.is_some() {
                        assert!((first..).zip(&*rows).all(|(i, x)| *x == value(i, step)));
                    }
                    for _ in 0..steps {
                        step += 1;
                        let rows = session.values::<u64>("rows").unwrap();
                        (first..).zip(rows).for_each(|(i, x)| *x = value(i, step));
                        session.values::<u64>("step").unwrap()[0] = step;
                        session.commit().unwrap();
                    }
                    each(session);
                });
            }
        });
    }

    fn tarn_at(&self, tier: &str, arguments: &[&str]) -> Ran {
        let path = |name: &str| self.site.path(name).to_string_lossy().into_owned();
        let (tier, memory) = (path(tier), path("memory"));
        let places = ["--tier", &tier, "--memory", &memory];
        let mut command = self
            .site
            .command(&[&["ckpt"], arguments, &places[..]].concat());
        command.env("TARN_PHX_EXTERNAL", path("store"));
        Ran::of(command.output().unwrap())
    }

    fn tarn(&self, arguments: &[&str]) -> Ran {
        self.tarn_at("tier", arguments)
    }

    fn lose_nodes(&self) {
        fs::remove_dir_all(self.site.path("tier")).unwrap();
        fs::create_dir(self.site.path("tier")).unwrap();
        fs::remove_dir_all(self.site.path("memory")).unwrap();
    }

    fn store(&self) -> ExternalFolder {
        ExternalFolder::there(&self.site.path("store"), Path::new("heat"))
    }

    /// The version that `latest` names, all of which is whole.
    fn latest(&self) -> Result<Option<VersionId>, CheckpointError> {
        let store = self.store();
        let Some(latest) = flush::latest(&store)? else {
            return Ok(None);
        };
        let all = flush::list(&store)?;
        let found = all.iter().find(|v| v.version == latest).unwrap();
        assert!(found.is_complete(), "{found:?}");
        for rank in &found.parts {
            let (part, version, _) = flush::open(&store, latest, *rank)?;
            for object in &version.manifest.objects {
                let mut bytes = vec![0; object.size() as usize];
                assert!(arena::read(&part, object, &mut bytes).unwrap().is_empty());
            }
        }
        Ok(Some(latest.id))
    }
}

fn id(generation: u64, number: u64) -> VersionId {
    VersionId { generation, number }
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut all = Vec::new();
    common::files(folder, &mut all);
    all.into_iter().collect()
}

#[test]
fn what_a_killed_program_had_staged_goes_on_on_other_nodes_and_other_numbers_of_ranks() {
    let program = Program::new();
    let nothing = program.tarn(&["drain", "heat"]).exits(7);
    nothing.prints("no checkpoints of `heat`");
    program.start(2, None, 3, |session| {
        drop(session);
    });
    let listed = program.tarn(&["ls", "heat"]).exits(0);
    listed.prints("1.3 committed ");
    let missing = program.tarn(&["drain", "heat", "1.9"]).exits(7);
    missing.prints("no version 1.9");
    let before = files(&program.site.path("memory"));
    let drained = program.tarn(&["drain", "heat", "--rate", "1GB/s"]).exits(0);
    drained.prints("version 1.3 of heat: 2 of 2 ranks, ");
    // It is as it was: another one finds nothing to do, and so does the program's next start.
    let again = program.tarn(&["drain", "heat"]).exits(0);
    again.prints("has version 1.3 already");
    let again = program.tarn(&["drain", "heat", "--json"]).exits(0);
    let row = again.summary();
    assert_eq!((&row["number"], &row["bytes"]), (&3.into(), &0.into()));
    assert_eq!(
        (&row["ranks_here"], &row["latest"]),
        (&2.into(), &true.into())
    );
    assert_eq!(files(&program.site.path("memory")), before);
    assert_eq!(program.latest().unwrap(), Some(id(1, 3)));
    program
        .tarn(&["ls", "heat"])
        .exits(0)
        .prints("1.3 flushed ");
    program.lose_nodes();
    let listed = program.tarn(&["ls"]).exits(0);
    listed.prints("1.3 flushed         0 of 2").prints(" yes\n");
    program.start(2, Some(id(1, 3)), 1, drop);
    // A version that only the store has is there; a version that nobody has is not.
    let there = program.tarn(&["drain", "heat", "1.3"]).exits(0);
    there.prints("has version 1.3 already");
    program.tarn(&["drain", "heat", "1.2"]).exits(7);
    // The staged data in memory is gone: an incomplete version does not get to the store.
    for staging in ["0.staging", "1.staging"] {
        let all = files(&program.site.path("memory"));
        let file = all.iter().find(|f| f.ends_with(staging)).unwrap();
        fs::remove_file(file).unwrap();
    }
    let damaged = program.tarn(&["drain", "heat", "2.1"]).exits(1);
    let damaged = damaged.prints("the staged data of rank 0's part of version 2.1 is not in ");
    damaged.prints("if the program uses another folder in memory");
    assert_eq!(program.latest().unwrap(), Some(id(1, 3)));
    program.lose_nodes();
    program.start(3, Some(id(1, 3)), 1, drop);
    program.tarn(&["drain", "heat"]).exits(0);
    program.lose_nodes();
    program.start(3, Some(id(2, 1)), 0, drop);
}

/// Rank 1's node died when it had two versions, rank 0's had three.
#[test]
fn nodes_drain_one_after_the_other_and_come_to_a_version_that_all_have() {
    let program = Program::new();
    let arena = program.site.path("tier/phx/heat/1/1.arena");
    let other = program.site.path("other/phx/heat/1");
    fs::create_dir_all(&other).unwrap();
    program.start(2, None, 2, |mut session| {
        session
            .wait(id(1, 2), PersistenceLevel::Durable, None)
            .unwrap();
        let _ = fs::copy(&arena, other.join("1.arena"));
        session.commit().unwrap();
        session.end().unwrap();
    });
    fs::remove_file(&arena).unwrap();
    let drains = |tier: &str, expected: &str| {
        let ran = program.tarn_at(tier, &["drain", "heat"]).exits(0);
        ran.prints(expected);
    };
    drains("tier", "version 1.3 of heat: 1 of 2 ranks");
    drains("other", "rank 0 is not there yet");
    assert_eq!(program.latest().unwrap(), None);
    let listed = program.tarn(&["ls", "heat"]).exits(0);
    assert!(!listed.out.contains("flushed"), "{}", listed.out);
    let last = program.tarn(&["drain", "heat", "--json"]).exits(0);
    let last = last.summary();
    assert_eq!(
        (&last["number"], &last["latest"]),
        (&2.into(), &true.into())
    );
    assert_eq!(
        (&last["ranks_there"], &last["ranks"]),
        (&2.into(), &2.into())
    );
    assert_eq!(program.latest().unwrap(), Some(id(1, 2)));
    program.lose_nodes();
    program.start(2, Some(id(1, 2)), 0, drop);
}

#[test]
fn a_running_program_is_left_to_flush_itself() {
    let program = Program::new();
    let mut session = program.begin(0, 1, Some(1));
    let committed = session.commit().unwrap().id;
    session
        .wait(committed, PersistenceLevel::Flushed, None)
        .unwrap();
    let busy = program.tarn(&["drain", "heat"]).exits(6);
    busy.prints(&format!("process {}", std::process::id()));
    session.end().unwrap();
    let again = program.tarn(&["drain", "heat"]).exits(0);
    again.prints("has version 1.1 already");
}

/// A drain is killed again and again, anywhere: `latest` names what is whole or nothing, and one that is let be ends well.
#[test]
fn a_drain_that_is_killed_leaves_no_version_that_is_not_whole() {
    let program = Program::new();
    program.start(3, None, 1, drop);
    let mut done = 0;
    for kill in 0..12 {
        let path = |name: &str| program.site.path(name).to_string_lossy().into_owned();
        let (tier, memory, store) = (path("tier"), path("memory"), path("store"));
        let arguments = ["--tier", &tier, "--memory", &memory, "--to", &store];
        let slow = ["ckpt", "drain", "heat", "--rate", "15MB/s"];
        let mut command = program.site.command(&[&slow[..], &arguments].concat());
        let mut drain = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 + 13 * kill));
        drain.kill().unwrap();
        drain.wait().unwrap();
        let latest = program.latest().unwrap();
        assert!(latest.is_none_or(|latest| latest == id(1, 1)));
        if latest.is_some() {
            done += 1;
            fs::remove_dir_all(program.site.path("store/phx")).unwrap();
        }
    }
    assert!(done < 12);
    program.tarn(&["drain", "heat"]).exits(0);
    assert_eq!(program.latest().unwrap(), Some(id(1, 1)));
    let store = program.site.path("store");
    let left = files(&store);
    let part = |p: &PathBuf| p.extension().is_some_and(|e| e == "part");
    assert!(!left.iter().any(part), "{left:?}");
    program.lose_nodes();
    program.start(3, Some(id(1, 1)), 0, drop);
}
