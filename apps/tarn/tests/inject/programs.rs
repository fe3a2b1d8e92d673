//! Verbs whose work other programs do: each call of one of these is hit, and `tarn` killed before or after it.

use crate::calls::{chosen, is_swept};
use crate::common::{Ran, Site};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The injected failure of such a call.
#[derive(Debug, Clone, Copy)]
enum CallHow {
    /// It fails, and nothing was done.
    Fails,
    /// It fails after it has done its work.
    Late,
    /// `tarn` ends before it has done anything.
    Before,
    /// `tarn` ends after it has done its work.
    After,
    /// It does its work, and `tarn` gets a signal to end meanwhile.
    Term,
}

const WAYS: [CallHow; 5] = [
    CallHow::Fails,
    CallHow::Late,
    CallHow::Before,
    CallHow::After,
    CallHow::Term,
];

/// The result of a command of which a call of a program was hit.
pub(crate) struct CallHit {
    /// For messages.
    pub(crate) what: String,
    pub(crate) ran: Ran,
}

impl CallHit {
    pub(crate) fn done(&self) -> bool {
        self.ran.code == Some(0)
    }

    /// It had no time to say anything.
    pub(crate) fn is_killed(&self) -> bool {
        self.ran.code.is_none()
    }
}

/// Puts a file in the site's `real` under each of these names, and in its `bin` what can be hit.
pub(crate) fn install(site: &Site, played: &Path, names: &[&str]) {
    let hit = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inject/hit.sh");
    for name in names {
        for (folder, source) in [("bin", hit.as_path()), ("real", played)] {
            let path = site.path(folder).join(name);
            fs::create_dir_all(site.path(folder)).unwrap();
            // No copy: a fork of another test could have it open for writing when it is run.
            std::os::unix::fs::symlink(source, &path).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_ne!(mode & 0o100, 0, "{}", source.display());
        }
    }
}

/// Of a command: the programs are those of the site.
pub(crate) fn with_programs(site: &Site, command: &mut Command) {
    let path = format!("{}:/usr/bin:/bin", site.path("bin").display());
    command
        .env("PATH", path)
        .env("HIT_FOLDER", site.dir.path())
        .env("HIT_CALL", "0");
}

/// As [`sweep`](crate::calls::sweep), of calls of programs.
pub(crate) fn sweep_programs<W>(
    name: &str,
    prepare: impl Fn() -> W,
    command: impl Fn(&W) -> Command,
    site: impl Fn(&W) -> &Site,
    check: impl Fn(&W, &CallHit),
) {
    is_swept(name);
    let once = |number: u64, how: CallHow| {
        let world = prepare();
        let calls = site(&world).path("calls");
        let _ = fs::remove_file(&calls);
        let mut command = command(&world);
        command
            .env("HIT_CALL", number.to_string())
            .env("HIT_HOW", format!("{how:?}").to_lowercase());
        let ran = Ran::of(command.output().unwrap());
        let calls = fs::read_to_string(calls).unwrap_or_default();
        let lines: Vec<&str> = calls.lines().collect();
        let hit = (number as usize)
            .checked_sub(1)
            .and_then(|at| lines.get(at));
        let hit = hit.copied().unwrap_or_default();
        let what = format!("{name}: {how:?} at call {number}, {hit}");
        let hit = CallHit { what, ran };
        let crashed = hit.ran.err.contains("panicked") || hit.ran.code == Some(70);
        assert!(!crashed, "{}: {}", hit.what, hit.ran.err);
        let is_silent = hit.ran.err.trim().is_empty() && hit.ran.out.trim().is_empty();
        let may_be_killed = matches!(how, CallHow::Before | CallHow::After | CallHow::Term);
        assert!(!hit.is_killed() || may_be_killed, "{}", hit.what);
        let is_explained = hit.done() || hit.is_killed() || !is_silent;
        assert!(
            is_explained,
            "{}: {:?} without a word",
            hit.what, hit.ran.code
        );
        check(&world, &hit);
        lines.len() as u64
    };
    let calls = once(0, CallHow::Fails);
    assert!(calls > 0, "{name} calls nothing");
    let mut count = 0;
    for (number, way) in chosen(calls, WAYS.len() as u64) {
        once(number, WAYS[way]);
        count += 1;
    }
    println!("{name}: {count} times one of {calls} calls of programs was hit");
}
