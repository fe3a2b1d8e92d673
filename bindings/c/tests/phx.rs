//! C programs with checkpoints.

mod common;

use common::{compiler, output_of, source};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_checkpoint::destage::{DestageOutcome, Destager};
use tarn_checkpoint_core::{arena, flush};
use tarn_keyring::{fresh, write};
use tarn_media::ExternalFolder;
use tarn_seal::ring::KeyRing;

/// Compiles a C program against the library.
fn compile(file: &str, to: &Path, extra: &[&str]) {
    let flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wpedantic"];
    output_of(&mut compiler("cc", &[&flags, extra].concat(), &[file], to));
}

#[test]
fn a_program_goes_on_where_it_ended() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    let keys = KeyRing::new(fresh().unwrap());
    write(&folder.path().join("config/tarn/key"), &keys, false).unwrap();
    for (name, encrypt) in [("clear", "0"), ("encrypted", "1")] {
        let own = folder.path().join(name);
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&program);
            command.env("XDG_CONFIG_HOME", folder.path().join("config"));
            command.env("TARN_PHX_ENCRYPT", encrypt);
            output_of(command.arg(&own).args(arguments))
        };
        assert_eq!(run(&["3"]), "done at step 3\n");
        // It ends with staged versions in memory.
        assert_eq!(run(&["9", "5"]), "restored 1.3 step 3\n");
        assert_eq!(run(&["6"]), "restored 2.2 step 5\ndone at step 6\n");
        assert_eq!(run(&["6"]), "restored 3.1 step 6\ndone at step 6\n");
    }
}

/// All nodes are lost, with their tiers and memory; then as many ranks resume, and then another number.
#[test]
fn a_program_goes_on_from_the_external_store() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    std::fs::create_dir(folder.path().join("store")).unwrap();
    for (ranks, first, last) in [(2, 0, 4), (2, 4, 6), (3, 6, 8), (3, 8, 8)] {
        let started: Vec<_> = (0..ranks)
            .map(|rank: u32| {
                let mut command = Command::new(&program);
                command
                    .arg(folder.path())
                    .args(["outside", &last.to_string()]);
                command
                    .env("RANK", rank.to_string())
                    .env("RANKS", ranks.to_string());
                command.stdout(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for rank in started {
            let ended = rank.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&ended.stdout);
            assert_eq!(text, format!("from step {first} to {last}\n"));
        }
        for lost in ["tier", "memory"] {
            std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
        }
    }
}

#[test]
fn versions_are_what_any_object_asks_for() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let text = output_of(Command::new(&program).arg(folder.path()).arg("properties"));
    assert_eq!(text, "versions are what objects ask for\n");
}

#[test]
fn a_program_whose_writes_are_tracked_by_mprotect_goes_on_where_it_ended() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("mprotect");
    compile("tests/mprotect.c", &program, &["-D_DEFAULT_SOURCE"]);
    for from in ["begun", "restored"] {
        let text = output_of(Command::new(&program).arg(folder.path()));
        assert_eq!(text, format!("{from}\nits own fault\n"));
    }
}

#[test]
fn misuse_is_told_by_codes() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for (name, extra) in [
        ("plain", &[][..]),
        (
            "asan",
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        ),
    ] {
        let program = folder.path().join(name);
        compile("tests/phx.c", &program, extra);
        let text = output_of(
            Command::new(&program)
                .arg(folder.path().join(format!("{name}.d")))
                .arg("misuse")
                .env_remove("TARN_PHX_TIER"),
        );
        assert!(text.contains("all misuse is told"), "{name}: {text}");
    }
}

/// Brings what programs in a folder left to the tier, again and again, as a tarnd does.
struct LooksAfter {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl LooksAfter {
    fn begin(folder: &Path) -> Self {
        let mut destager = Destager::new(&folder.join("tier"), &folder.join("memory"));
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut brought = 0;
            loop {
                // Versions left at the end are brought, however slow the machine.
                let is_last = end.load(SeqCst);
                // Until the program has begun there is nothing.
                let _ = destager.run(OsStr::new("c"), &mut |left| match left.what {
                    DestageOutcome::Brought(versions) => brought += versions.len(),
                    DestageOutcome::Failed(why) => panic!("{}: {why}", left.path.display()),
                    DestageOutcome::Lacking(_)
                    | DestageOutcome::Running(_)
                    | DestageOutcome::Busy => {}
                });
                if is_last {
                    return brought;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { ended, thread }
    }

    /// Versions that were brought.
    fn end(self) -> usize {
        self.ended.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

/// Ranks are killed at random instants, one or all: the next start has what all had committed, or something newer, and it is whole. Half
/// of the time another one brings to the tier what is left in between, and is overtaken by starts.
/// `TARN_KILLS` asks for more of them, `make soak` does.
#[test]
fn ranks_are_killed_at_any_instant() {
    const KILLS: u64 = 100;
    let variable = std::env::var("TARN_KILLS").ok();
    let kills = variable.map_or(KILLS, |n| n.parse().expect("TARN_KILLS is a number"));
    const RANKS: u32 = 2;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    // Another mixture each time: a failure names its seed.
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut random = seed;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    // The mixture, and the version that all ranks have committed so far.
    let (mut how, mut least, mut run) = (0, 0, 0);
    let (mut flushed, mut brought) = (0, 0);
    let mut looks_after: Option<LooksAfter> = None;
    for kill in 0..kills {
        if kill % 10 == 0 {
            // Another way of staging, from nothing.
            (how, least, run) = (next(64), 0, run + 1);
            // Every second flushes what it commits, which takes a helper.
            how &= if run % 2 == 1 { !8 } else { !0 };
            brought += looks_after.take().map_or(0, LooksAfter::end);
            if run % 4 > 1 {
                // The remaining versions are in memory.
                how &= !(2 | 16);
                // And stays there, without a helper.
                how |= if run % 2 == 0 { 8 } else { 0 };
                let folder = folder.path().join(format!("run{run}"));
                looks_after = Some(LooksAfter::begin(&folder));
            }
        }
        let dir = folder.path().join(format!("run{run}"));
        let store = dir.join("store");
        std::fs::create_dir_all(&store).unwrap();
        let mut ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let mut command = Command::new(&program);
                command.arg(&dir).args(["endless", &how.to_string()]);
                command
                    .env("RANK", rank.to_string())
                    .env("RANKS", RANKS.to_string());
                if run % 2 == 1 {
                    command
                        .env("TARN_PHX_EXTERNAL", &store)
                        .env("TARN_PHX_FLUSH_EVERY", "1")
                        .env("TARN_PHX_FLUSH_RATE", "1GB/s");
                }
                command.stdout(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        // All have come, or one dies while they do.
        let mut outputs: Vec<_> = ranks
            .iter_mut()
            .map(|r| BufReader::new(r.stdout.take().unwrap()).lines())
            .collect();
        let mut printed: Vec<Vec<String>> = vec![Vec::new(); RANKS as usize];
        if next(8) > 0 {
            for (of_rank, lines) in printed.iter_mut().zip(&mut outputs) {
                of_rank.push(lines.next().expect("restored").unwrap());
            }
        }
        // A flush takes longer than some commits.
        let most = if run % 2 == 1 { 100_000 } else { 40_000 };
        std::thread::sleep(Duration::from_micros(next(most)));
        let first = next(RANKS.into()) as usize;
        ranks[first].kill().unwrap();
        std::thread::sleep(Duration::from_micros(next(3000)));
        ranks.iter_mut().for_each(|r| r.kill().unwrap());
        for ((of_rank, lines), rank) in printed.iter_mut().zip(outputs).zip(&mut ranks) {
            of_rank.extend(lines.map(Result::unwrap));
            rank.wait().unwrap();
        }
        let context = || format!("seed {seed}, kill {kill}, way {how}: {printed:?}");
        let number =
            |line: &String, what: &str| line.strip_prefix(what).map(|n| n.parse::<u64>().unwrap());
        for of_rank in &printed {
            let restored = of_rank.iter().find_map(|l| number(l, "restored "));
            assert!(
                restored.is_none_or(|r| r >= least),
                "{least} was committed; {}",
                context()
            );
            // Degraded, out of time, lost, and the errors that follow from a failed phx_init.
            let gone = |l: &String| {
                [1, 10, 11, 14]
                    .iter()
                    .any(|code| l.contains(&format!(": {code} instead of ")))
            };
            let fine = |l: &String| {
                number(l, "restored ").or(number(l, "committed ")).is_some() || gone(l)
            };
            assert!(of_rank.iter().all(fine), "{}", context());
        }
        flushed += usize::from(whole_outside(&store));
        // It has the time to end, or not.
        if looks_after.is_some() && next(2) == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let last =
            |of_rank: &Vec<String>| of_rank.iter().filter_map(|l| number(l, "committed ")).max();
        least = least.max(
            printed
                .iter()
                .map(|s| last(s).unwrap_or(0))
                .min()
                .unwrap_or(0),
        );
    }
    assert!(flushed > 0, "seed {seed}: nothing was flushed");
    brought += looks_after.map_or(0, LooksAfter::end);
    println!("{brought} versions were brought to the tier in between");
    assert!(
        brought > 0 || kills < KILLS,
        "seed {seed}: nothing was brought"
    );
}

/// Programs that map versions while others commit, both killed at random instants: the versions seen are whole, and stay so. In
/// the end the arenas are no larger than for one version more a reader.
#[test]
fn readers_and_ranks_are_killed_at_any_instant() {
    const ROUNDS: u64 = 10;
    const RANKS: u32 = 2;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    let dir = folder.path().join("run");
    let begin = |arguments: &[&str], rank: u32| {
        let mut command = Command::new(&program);
        command.arg(&dir).args(arguments);
        command
            .env("RANKS", RANKS.to_string())
            .env("RANK", rank.to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut seen = 0;
    for round in 0..ROUNDS {
        // Copied at once, staged in part or as a whole, one or two versions kept.
        let how = [16, 1, 48, 0][round as usize % 4].to_string();
        let ranks = (0..RANKS).map(|rank| begin(&["endless", &how], rank));
        let mut all: Vec<_> = ranks.map(|rank| (false, rank)).collect();
        all.extend((0..2).map(|_| (true, begin(&["watch"], 0))));
        let random = seed.rotate_left(7 * round as u32);
        std::thread::sleep(Duration::from_millis(150 + random % 150));
        // Ranks first, or readers.
        all.rotate_left(2 * (round as usize % 2));
        for (_, process) in &mut all {
            process.kill().unwrap();
            std::thread::sleep(Duration::from_micros(random % 20_000));
        }
        for (is_reader, process) in all {
            let text = process.wait_with_output().unwrap().stdout;
            let text = String::from_utf8_lossy(&text);
            let own: &[&str] = match is_reader {
                true => &["seen "],
                // Out of time, lost, and the errors that follow from that.
                false => &["restored ", "committed ", ": 10 ", ": 11 ", ": 14 "],
            };
            let fine = |line: &str| own.iter().any(|words| line.contains(words));
            assert!(text.lines().all(fine), "seed {seed}, round {round}: {text}");
            seen += if is_reader { text.lines().count() } else { 0 };
        }
    }
    assert!(seen > 10, "{seen}");
    for rank in 0..RANKS {
        let arena = dir.join(format!("tier/phx/c/1/{rank}.arena"));
        let size = std::fs::metadata(arena).unwrap().len();
        assert!(size < 32 << 20, "{size}");
    }
}

/// Whether `latest` names a version; all parts of that are there, and whole.
fn whole_outside(store: &Path) -> bool {
    let store = ExternalFolder::there(store, Path::new("c"));
    let Some(latest) = flush::latest(&store).unwrap() else {
        return false;
    };
    let all = flush::list(&store).unwrap();
    let found = all.iter().find(|v| v.version == latest).unwrap();
    assert!(found.is_complete(), "{found:?}");
    for rank in &found.parts {
        let (part, version, _) = flush::open(&store, latest, *rank).unwrap();
        for object in &version.manifest.objects {
            let mut bytes = vec![0; object.size() as usize];
            let bad = arena::read(&part, object, &mut bytes).unwrap();
            assert!(bad.is_empty(), "rank {rank} of {latest:?}");
        }
    }
    true
}

/// A tier, and memory, that are full: in a namespace of mounts, where a user may have one.
#[test]
fn what_does_not_fit_is_told_before_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("phx");
    compile("tests/phx.c", &program, &[]);
    let namespace = ["--map-root-user", "--mount"];
    if !Command::new("unshare")
        .args(namespace)
        .arg("true")
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("SKIPPED: no namespaces of mounts here, so no full tier");
        return;
    }
    let script = "mkdir tier memory large && mount -t tmpfs -o size=16m none tier && mount -t tmpfs -o size=16m none memory && \
                  mount -t tmpfs -o size=200m none large && exec ./phx . full";
    let text = output_of(
        Command::new("unshare")
            .args(namespace)
            .args(["sh", "-c", script])
            .current_dir(folder.path()),
    );
    assert!(text.contains("what does not fit is told"), "{text}");
    for words in ["No space left", "stage less", "versions pinned: end them"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// The numbers are what the library has.
#[test]
fn the_header_has_the_codes_of_the_library() {
    let header = std::fs::read_to_string(source("include/phx.h")).unwrap();
    let begin = header.find("enum phx_code").unwrap();
    let codes = &header[begin..begin + header[begin..].find('}').unwrap()];
    let number = |line: &str| {
        let (name, rest) = line.trim().strip_prefix("PHX_E")?.split_once(" = ")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some((name.to_lowercase(), digits.parse::<u8>().ok()?))
    };
    let found: Vec<_> = codes.lines().filter_map(number).collect();
    let own: Vec<_> = tarn_checkpoint_core::CheckpointErrorCode::ALL
        .iter()
        .map(|c| (format!("{c:?}").to_lowercase(), *c as u8))
        .collect();
    assert_eq!(found, own);
}
