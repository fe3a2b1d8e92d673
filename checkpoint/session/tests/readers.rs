//! Programs that map a version of another, which continues meanwhile, dies, or is started again. (Readers and writer are one
//! process here, or two: the kernel's locks are those of open files. Two are in `bindings/c/tests/phx.rs`.)

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, Options, PersistenceLevel, Properties,
    StagingShare, VersionId, VersionReader, VersionSelector,
};
use tarn_checkpoint_core::{
    Arena, ArenaHeader, Object, ObjectPiece, PieceLocation, ProgramStart, RankManifest, Shape,
};
use tarn_media::MappedFile;
use tarn_ports::{Medium, MediumWindow};
use tempfile::TempDir;

const CELLS: usize = 100_000;

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn options(folder: &Path) -> Options {
    Options {
        run: Some("run".into()),
        tier: Some(folder.join("tier")),
        memory: Some(folder.join("memory")),
        ..Options::default()
    }
}

/// A program of one rank, whose cells all have the number of the step.
fn program(options: Options) -> CheckpointSession {
    let mut session = CheckpointSession::begin(options).unwrap();
    let cells = Properties::default();
    session.create("cells", CELLS * 8, 8, cells).unwrap();
    session.create("none", 0, 4, Properties::default()).unwrap();
    session.restart(None).unwrap();
    session
}

fn step(session: &mut CheckpointSession) -> VersionId {
    let cells = session.values::<u64>("cells").unwrap();
    let next = cells[0] + 1;
    cells.fill(next);
    session.commit().unwrap().id
}

fn steps(session: &mut CheckpointSession, count: usize) {
    for _ in 0..count {
        step(session);
    }
}

fn which(folder: &Path, version: Option<(u64, u64)>) -> VersionSelector {
    VersionSelector {
        run: Some("run".into()),
        tier: Some(folder.join("tier")),
        version: version.map(|(generation, number)| VersionId { generation, number }),
        ..VersionSelector::default()
    }
}

fn read(folder: &Path) -> VersionReader {
    VersionReader::open(which(folder, None)).unwrap()
}

fn refused(folder: &Path, version: Option<(u64, u64)>) -> CheckpointError {
    VersionReader::open(which(folder, version)).unwrap_err()
}

fn assert_is_step(reader: &VersionReader, step: u64) {
    let cells = reader.values::<u64>(0, "cells").unwrap();
    assert!(cells.len() == CELLS && cells.iter().all(|c| *c == step));
}

fn arena(folder: &Path, generation: u64, rank: u32) -> PathBuf {
    folder.join(format!("tier/phx/run/{generation}/{rank}.arena"))
}

#[test]
fn what_is_pinned_stays_and_its_slot_is_used_again_afterwards() {
    let folder = folder();
    let mut session = program(options(folder.path()));
    steps(&mut session, 3);
    let size = || fs::metadata(arena(folder.path(), 1, 0)).unwrap().len();
    let before = size();
    let reader = read(folder.path());
    let at = reader.map(0, b"cells").unwrap().as_ptr();
    assert_eq!(
        (reader.version().to_string(), reader.of()),
        ("1.3".into(), 1)
    );
    assert_eq!(reader.ranks().collect::<Vec<_>>(), [0]);
    assert_eq!(reader.level(), PersistenceLevel::Durable);
    let kept: Vec<_> = reader.objects(0).unwrap().collect();
    assert_eq!(
        (kept[0].key, kept[0].bytes, kept[0].unit),
        (&b"cells"[..], CELLS as u64 * 8, 8)
    );
    assert!(reader.map(0, b"none").unwrap().is_empty() && kept.len() == 2);
    assert_eq!(session.stats().pinned, 0);
    steps(&mut session, 10);
    assert_is_step(&reader, 3);
    assert_eq!(reader.map(0, b"cells").unwrap().as_ptr(), at);
    let passed = session.stats().pinned;
    assert!(passed > 0);
    // More of them than the arena has space for.
    let mut others = Vec::new();
    for next in 14..40 {
        others.push((read(folder.path()), next - 1));
        steps(&mut session, 1);
    }
    assert_is_step(&reader, 3);
    others
        .iter()
        .for_each(|(other, step)| assert_is_step(other, *step));
    let grown = size();
    assert!(grown > before);
    drop((reader, others));
    let passed = session.stats().pinned;
    steps(&mut session, 10);
    assert_eq!((size(), session.stats().pinned), (grown, passed));
    for step in 49..52 {
        let reader = read(folder.path());
        steps(&mut session, 1);
        assert_is_step(&reader, step);
    }
    assert_eq!(size(), grown);
    session.end().unwrap();
    assert_is_step(&read(folder.path()), 52);
}

#[test]
fn a_version_outlives_the_start_that_wrote_it_for_as_long_as_it_is_read() {
    let folder = folder();
    let mut session = program(options(folder.path()));
    steps(&mut session, 2);
    let reader = read(folder.path());
    // As if it was killed.
    drop(session);
    for start in 2..4 {
        let mut session = program(options(folder.path()));
        steps(&mut session, 5);
        assert!(session.stats().pinned > 0);
        assert_is_step(&reader, 2);
        let newest = read(folder.path()).version();
        assert_eq!((newest.generation, newest.number), (start, 5));
    }
    let gone = refused(folder.path(), Some((1, 2)));
    assert_eq!(gone.code, CheckpointErrorCode::NotFound);
    assert!(
        gone.text.contains("there are: 3.4, 3.5") || gone.text.contains("there are: 3.5"),
        "{gone}"
    );
    fs::remove_dir_all(folder.path()).unwrap();
    assert_is_step(&reader, 2);
}

#[test]
fn what_is_partly_staged_is_passed_over_or_refused_by_its_name() {
    let folder = folder();
    let mut session = program(Options {
        staging: Some(StagingShare::All),
        helper: false,
        ..options(folder.path())
    });
    assert!(
        refused(folder.path(), None)
            .text
            .contains("there is no version of run")
    );
    let first = step(&mut session);
    let none = refused(folder.path(), None);
    assert_eq!(none.code, CheckpointErrorCode::NotFound);
    assert!(none.text.contains("1.1 is not on rank 0"), "{none}");
    let second = step(&mut session);
    assert_eq!(read(folder.path()).version(), first);
    let staged = refused(folder.path(), Some((1, 2)));
    assert_eq!(staged.code, CheckpointErrorCode::Unsupported);
    assert!(staged.text.contains("wait for that level"), "{staged}");
    session
        .wait(second, PersistenceLevel::Durable, None)
        .unwrap();
    assert_eq!(read(folder.path()).version(), second);
    assert_is_step(
        &VersionReader::open(which(folder.path(), Some((1, 2)))).unwrap(),
        2,
    );
}

#[test]
fn what_is_found_while_it_is_given_up_is_whole() {
    let folder = folder();
    let mut session = program(options(folder.path()));
    step(&mut session);
    let ended = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        let look = || {
            let (mut opened, mut held) = (0, Vec::new());
            while !ended.load(Ordering::Relaxed) {
                let reader = read(folder.path());
                let cells = reader.values::<u64>(0, "cells").unwrap();
                let step = cells[0];
                assert_is_step(&reader, step);
                held.push((reader, step));
                if held.len() > 3 {
                    held.iter()
                        .for_each(|(reader, step)| assert_is_step(reader, *step));
                    held.clear();
                }
                opened += 1;
            }
            opened
        };
        let readers = [scope.spawn(look), scope.spawn(look)];
        steps(&mut session, 500);
        ended.store(true, Ordering::Relaxed);
        readers.map(|r| r.join().unwrap()).iter().sum::<u32>()
    });
    assert!(opened > 10 && session.stats().pinned > 0);
}

/// A rank's arena with versions of a start, of one object each, of which some are staged.
fn make(folder: &Path, started: u64, rank: u32, ranks: u32, versions: &[(u64, bool)]) -> PathBuf {
    const SIZE: u64 = 1 << 20;
    let path = arena(folder, 1, rank);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut mapped = MappedFile::create(&path, SIZE).unwrap();
    let mut windows = mapped.windows(std::slice::from_ref(&(0..SIZE))).unwrap();
    let window = &mut windows[0];
    let start = |generation| ProgramStart {
        generation,
        identity: 5,
    };
    let header = ArenaHeader {
        identity: rank.into(),
        run: b"run".as_slice().into(),
        start: start(1),
        rank,
        ranks,
    };
    let mut arena = Arena::format(window, header).unwrap();
    arena.start(window, start(started)).unwrap();
    for (number, staged) in versions {
        let bytes = [rank as u8; 5000];
        let at = arena.places(window, &[5000]).unwrap()[0];
        let object = Object {
            key: b"cells".as_slice().into(),
            unit: 1,
            shape: Shape::Own,
            pieces: vec![ObjectPiece {
                length: 5000,
                place: match staged {
                    true => PieceLocation::Staged(1 << 16),
                    false => PieceLocation::Arena(at),
                },
                sums: vec![window.write(at, &bytes).unwrap()],
            }],
        };
        let manifest = RankManifest {
            seal: None,
            objects: vec![object],
        };
        let id = VersionId {
            generation: started,
            number: *number,
        };
        let new = Some((id, PersistenceLevel::Committed, manifest));
        arena.publish(window, new, |_| true).unwrap();
    }
    path
}

#[test]
fn all_ranks_of_the_node_have_the_version_durable() {
    let folder = folder();
    let open = || read(folder.path());
    make(
        folder.path(),
        1,
        0,
        6,
        &[(1, false), (2, false), (3, false)],
    );
    make(folder.path(), 1, 3, 6, &[(1, false), (2, false), (3, true)]);
    let reader = open();
    assert_eq!((reader.version().number, reader.of()), (2, 6));
    assert_eq!(reader.ranks().collect::<Vec<_>>(), [0, 3]);
    for rank in [0, 3] {
        let bytes = reader.map(rank, b"cells").unwrap();
        assert!(bytes.len() == 5000 && bytes.iter().all(|b| u32::from(*b) == rank));
    }
    let elsewhere = reader.map(1, b"cells").unwrap_err();
    assert_eq!(elsewhere.code, CheckpointErrorCode::NotFound);
    assert!(
        elsewhere.text.contains("these ranks have: 0, 3"),
        "{elsewhere}"
    );
    assert_eq!(
        reader.map(0, b"cell").unwrap_err().code,
        CheckpointErrorCode::NotFound
    );
    assert_eq!(
        reader.values::<u128>(0, "cells").unwrap_err().code,
        CheckpointErrorCode::Invalid
    );
    let staged = refused(folder.path(), Some((1, 3)));
    assert!(staged.text.contains("is not durable on rank 3"), "{staged}");
    // One that has none of these.
    fs::remove_file(arena(folder.path(), 1, 3)).unwrap();
    make(folder.path(), 1, 3, 6, &[]);
    assert!(
        refused(folder.path(), None)
            .text
            .contains("is not on rank 3")
    );
    // Since the last start, which it knows nothing of, its rank is elsewhere.
    fs::remove_file(arena(folder.path(), 1, 0)).unwrap();
    make(folder.path(), 2, 0, 6, &[(1, false)]);
    let reader = open();
    assert_eq!(reader.version().to_string(), "2.1");
    assert_eq!(reader.ranks().collect::<Vec<_>>(), [0]);
}

fn flip(path: &Path, wanted: impl Fn(&[u8]) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = wanted(&bytes);
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_is_damaged_is_told_and_nothing_else_is_hurt() {
    let folder = folder();
    let path = make(folder.path(), 1, 0, 2, &[(1, false)]);
    make(folder.path(), 1, 1, 2, &[(1, false)]);
    flip(&path, |_| (64 << 10) + 77);
    let reader = read(folder.path());
    for _ in 0..2 {
        let damaged = reader.map(0, b"cells").unwrap_err();
        assert_eq!(damaged.code, CheckpointErrorCode::Corrupt);
        assert!(
            damaged
                .text
                .contains("bytes 0 to 5000 of object \"cells\" of rank 0"),
            "{damaged}"
        );
    }
    assert_eq!(reader.map(1, b"cells").unwrap()[77], 1);
    let unverified = VersionSelector {
        verify: false,
        ..which(folder.path(), None)
    };
    assert_eq!(
        VersionReader::open(unverified)
            .unwrap()
            .map(0, b"cells")
            .unwrap()[77],
        4
    );
    // A manifest, of the only version.
    flip(&path, |bytes| {
        bytes.windows(7).rposition(|w| w == b"PHXMANI").unwrap() + 60
    });
    assert!(
        refused(folder.path(), None)
            .text
            .contains("is not on rank 0")
    );
    // Files that are no arena.
    let stray = arena(folder.path(), 1, 7);
    for bytes in [
        vec![7; 100_000],
        Vec::new(),
        fs::read(&path).unwrap()[..5000].to_vec(),
    ] {
        fs::write(&stray, bytes).unwrap();
        let garbage = refused(folder.path(), Some((1, 1)));
        assert_eq!(garbage.code, CheckpointErrorCode::Corrupt);
        assert!(garbage.text.contains("7.arena"), "{garbage}");
    }
    fs::remove_file(&stray).unwrap();
    std::os::unix::fs::symlink(&path, &stray).unwrap();
    assert_eq!(refused(folder.path(), None).code, CheckpointErrorCode::Io);
}

#[test]
fn what_is_not_there_is_told() {
    let folder = folder();
    let missing = refused(folder.path(), None);
    assert_eq!(missing.code, CheckpointErrorCode::NotFound);
    fs::create_dir(folder.path().join("tier")).unwrap();
    let none = refused(folder.path(), None);
    assert_eq!(none.code, CheckpointErrorCode::NotFound);
    assert!(none.text.contains("there is no program run"), "{none}");
    let odd = VersionSelector {
        run: Some("../run".into()),
        ..which(folder.path(), None)
    };
    assert_eq!(
        VersionReader::open(odd).unwrap_err().code,
        CheckpointErrorCode::Invalid
    );
    let file = VersionSelector {
        tier: Some("/dev/null".into()),
        ..which(folder.path(), None)
    };
    assert_eq!(
        VersionReader::open(file).unwrap_err().code,
        CheckpointErrorCode::Io
    );
}
