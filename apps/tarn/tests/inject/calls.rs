//! The injector, and the choice of the call that it hits.

use crate::common::Ran;
use crate::linked::output_of;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The injected failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// A bad medium.
    Eio,
    /// A full one.
    Enospc,
    /// The process ends there.
    Kill,
}

const HOWS: [How; 3] = [How::Eio, How::Enospc, How::Kill];

/// The result of a command of which a call was hit.
pub(crate) struct Hit {
    pub(crate) how: How,
    /// For messages.
    pub(crate) what: String,
    pub(crate) ran: Ran,
}

impl Hit {
    pub(crate) fn done(&self) -> bool {
        self.ran.code == Some(0)
    }
}

/// The program; none where the system does not allow it.
pub(crate) fn injector() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        // Tests of other processes may be at it, too.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let part = folder.join(format!("inject.{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject/inject.c");
        let mut cc = Command::new("cc");
        cc.args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-o",
        ]);
        output_of(cc.arg(&part).arg(source));
        let program = folder.join("inject");
        std::fs::rename(part, &program).unwrap();
        let mut probe = Command::new(&program);
        let probe = probe
            .args(["/dev/null", "0", "eio", "/", "true", "true"])
            .status();
        if !probe.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no supervisor of system calls (seccomp) is allowed here");
            return None;
        }
        Some(program)
    });
    made.as_deref()
}

/// Hits call `number` of the calls by programs of these names below a folder while a command runs; returns how many there were,
/// and which that was.
fn run(
    program: &Path,
    command: &Command,
    (number, how): (u64, How),
    (folder, names): (&Path, &str),
) -> (Ran, u64, String) {
    let count = tempfile::NamedTempFile::new().unwrap();
    let mut injected = Command::new(program);
    injected
        .arg(count.path())
        .arg(number.to_string())
        .arg(format!("{how:?}").to_lowercase())
        .arg(folder.canonicalize().unwrap())
        .arg(names)
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(std::process::Stdio::null());
    if let Some(folder) = command.get_current_dir() {
        injected.current_dir(folder);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => injected.env(key, value),
            None => injected.env_remove(key),
        };
    }
    let ran = Ran::of(injected.output().unwrap());
    let text = std::fs::read_to_string(count.path()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let calls = lines.last().and_then(|line| line.parse().ok());
    let hit = (lines.len() > 1).then(|| lines[0].to_owned());
    (
        ran,
        calls.expect("a count of calls"),
        hit.unwrap_or_default(),
    )
}

/// How many of the calls are hit in each of the three ways: `TARN_INJECT` (`all`, or a number), or what a test has time for.
fn wanted(calls: u64) -> u64 {
    match std::env::var("TARN_INJECT").as_deref() {
        Ok("all") => calls,
        Ok(number) => number.parse().expect("TARN_INJECT is a number, or all"),
        Err(_) => 4,
    }
}

/// Which calls are hit, and in which of some ways: where not all are hit, each way hits different ones.
pub(crate) fn chosen(calls: u64, ways: u64) -> impl Iterator<Item = (u64, usize)> {
    let count = wanted(calls).min(calls);
    (0..count).flat_map(move |turn| {
        let between = calls / count;
        (0..ways).map(move |way| {
            let number = 1 + turn * calls / count + way * between / ways;
            (number, way as usize)
        })
    })
}

thread_local! {
    static SWEPT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes a sweep of this test.
pub(crate) fn is_swept(name: &str) {
    SWEPT.with_borrow_mut(|all| all.push(name.to_owned()));
}

/// Fails unless this test had a sweep of each of these verbs of `tarn`.
#[track_caller]
pub(crate) fn were_swept(verbs: &[&str]) {
    let all = SWEPT.take();
    for verb in verbs {
        let is_of = |name: &String| {
            let rest = name.strip_prefix(verb);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        assert!(all.iter().any(is_of), "no sweep of `{verb}` in {all:?}");
    }
}

/// For each of some calls that a command makes, and each way to hit it: `prepare` makes what the command works on, `check` looks at what came of it.
/// How often a call was hit.
pub(crate) fn sweep<W>(
    name: &str,
    names: &str,
    prepare: impl Fn() -> W,
    command: impl Fn(&W) -> (PathBuf, Command),
    check: impl Fn(&W, &Hit),
) -> u64 {
    is_swept(name);
    let Some(program) = injector() else { return 0 };
    let once = |number, how| {
        let world = prepare();
        let (folder, command) = command(&world);
        assert!(names != "tarn" || is_of(name, &command), "{name}");
        let (ran, calls, hit) = run(program, &command, (number, how), (&folder, names));
        let what = format!("{name}: {how:?} at call {number}, {hit}");
        let hit = Hit { how, what, ran };
        assert_ne!(hit.ran.code, Some(97), "{}: {}", hit.what, hit.ran.err);
        check(&world, &assert_explained(hit));
        calls
    };
    let calls = once(0, How::Eio);
    assert!(calls > 0, "{name} changes nothing");
    for (number, way) in chosen(calls, HOWS.len() as u64) {
        once(number, HOWS[way]);
    }
    let count = wanted(calls).min(calls);
    println!("{name}: {count} of {calls} calls were hit in each way");
    count
}

/// Whether a sweep's name begins with the verb of `tarn` that the command has.
fn is_of(name: &str, command: &Command) -> bool {
    let verb = name.split(" (").next().unwrap_or(name).split(' ');
    let verb = verb.take_while(|word| !word.starts_with('-'));
    verb.map(OsStr::new)
        .zip(command.get_args())
        .all(|(word, is)| word == is)
}

/// How many calls `tarn` makes in a command that change files below the folder; none is hit.
pub(crate) fn count((folder, command): (PathBuf, Command)) -> Option<(Ran, u64)> {
    let program = injector()?;
    let (ran, calls, _) = run(program, &command, (0, How::Eio), (&folder, "tarn"));
    Some((ran, calls))
}

/// Asserts that nobody panics, and that a command that fails says why.
fn assert_explained(hit: Hit) -> Hit {
    let Ran { code, err, .. } = &hit.ran;
    assert!(!err.contains("panicked"), "{}: {err}", hit.what);
    let crashed = matches!(code, None | Some(70 | 101 | 132 | 134 | 135 | 136 | 139));
    assert!(!crashed, "{}: {code:?}: {err}", hit.what);
    let silent =
        hit.how != How::Kill && !hit.done() && err.trim().is_empty() && hit.ran.out.is_empty();
    assert!(!silent, "{}: {code:?} without a word", hit.what);
    hit
}
