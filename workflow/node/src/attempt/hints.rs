//! Hints why a step has failed and what to do, found in the end of what it printed.

use crate::attempt::node_context::NodeContext;
use crate::attempt::step_needs::Need;
use crate::attempt::step_view::SCRATCH;
use crate::helper::protocol::StepIsolation;
use crate::helper::tmp;
use crate::storage::run_facts::RunFacts;
use std::path::{Component, Path};
use tarn_types::workflow::{Role, Step};

/// A shell's exit code for a program that a signal has ended: this, plus the signal's number.
const SIGNALLED: i32 = 128;
const PIPE: i32 = 13;
/// Error texts of the C library, which programs repeat.
const READ_ONLY: &str = "Read-only file system";
const EXISTS: &str = "File exists";
/// Messages of programs, in small letters, about text that is not UTF-8.
const NOT_TEXT: [&str; 8] = [
    "unicodeencodeerror",
    "unicodedecodeerror",
    "surrogates not allowed",
    "utf-8",
    "utf8",
    "multibyte",
    "wide character",
    "illegal byte sequence",
];
const MISSING: [&str; 5] = [
    "No such file",
    "not found",
    "can't open",
    "cannot open",
    "Cannot open",
];

/// Messages of Open MPI's `mpirun` and `prterun` about a program that they did not start.
const NOT_LAUNCHED: [&str; 2] = [
    "was unable to find the specified executable",
    "was unable to launch the specified application",
];
/// How they name its file, and the folder that it was to start in.
const LAUNCHED: [&str; 2] = ["Executable", "Working directory"];

/// The meaning of an exit status that may not be the program's own.
pub(crate) fn of_status(status: i32) -> &'static str {
    match status {
        status if status == SIGNALLED + PIPE => {
            " (SIGPIPE: the reader of a pipe ended before its writer, as in `yes | head`, which fails the step under `pipefail`; write \
             `(yes || true) | head`, or set `shell = \"bash -eu\"`)"
        }
        _ => "",
    }
}

/// A hint from the end of a step's log, as the rest of a sentence; empty where it has nothing that is known.
pub(crate) fn of_log(shared: &NodeContext, step: &Step, needs: &[Need<'_>], tail: &str) -> String {
    let own = StepHintContext {
        stage: match shared.isolation {
            StepIsolation::Group => None,
            StepIsolation::Namespaces { .. } => shared.stage(),
        },
        folder: &shared.workflow.folder,
        tmp: shared.isolation != StepIsolation::Group && !step.shared_tmp,
    };
    let used = needs.iter().map(|n| (n.name, n.role));
    let used: Vec<(&str, Role)> = used.collect();
    let hint = tail.lines().rev().find_map(|line| own.of_line(&used, line));
    let hint = hint.or_else(|| own.of_launcher(tail));
    let hint = hint.or_else(|| of_names(shared, needs, tail));
    hint.map_or_else(String::new, |hint| format!(". {hint}"))
}

/// A program that stumbles over text that is not UTF-8 may have met the name of a file.
fn of_names(shared: &RunFacts, needs: &[Need<'_>], tail: &str) -> Option<String> {
    if !is_about_text(tail) {
        return None;
    }
    needs
        .iter()
        .filter(|n| n.role != Role::Out)
        .find_map(|need| {
            let manifests = need.held.iter().flatten();
            let mut manifests = manifests.filter_map(|held| shared.manifest(&held.key).ok());
            manifests.find_map(|manifest| {
                let paths = manifest.entries.iter().map(|entry| &*entry.path);
                Some(not_text(need.name, not_utf8(paths)?))
            })
        })
}

fn is_about_text(tail: &str) -> bool {
    let tail = tail.to_lowercase();
    NOT_TEXT.iter().any(|words| tail.contains(words))
}

fn not_utf8<'p>(mut paths: impl Iterator<Item = &'p [u8]>) -> Option<&'p [u8]> {
    paths.find(|path| std::str::from_utf8(path).is_err())
}

fn not_text(name: &str, path: &[u8]) -> String {
    format!(
        "`{}` in its input `{name}` has a name that is not UTF-8, which many programs cannot read or print: rename the file in the source \
         (`convmv -f latin1 -t utf8`), or let the program take names as bytes",
        path.escape_ascii()
    )
}

/// The paths of a step's own data.
struct StepHintContext<'a> {
    /// The folder of its datasets, where they have paths of their own.
    stage: Option<std::path::PathBuf>,
    /// The workflow's.
    folder: &'a Path,
    /// It has a `/tmp` of its own.
    tmp: bool,
}

impl StepHintContext<'_> {
    fn of_line(&self, used: &[(&str, Role)], line: &str) -> Option<String> {
        if line.contains(READ_ONLY) {
            return Some(self.read_only(used, line));
        }
        if line.contains(EXISTS) {
            return self.exists(used, line);
        }
        if MISSING.iter().any(|words| line.contains(words)) {
            let missing = words(line).find_map(|word| self.missing(word));
            return missing;
        }
        None
    }

    /// Open MPI names the missing path in a line of its own, some lines after the error.
    fn of_launcher(&self, tail: &str) -> Option<String> {
        if !NOT_LAUNCHED.iter().any(|words| tail.contains(words)) {
            return None;
        }
        let named = tail.lines().rev().filter_map(|line| {
            let (what, path) = line.split_once(':')?;
            let what = what.trim();
            let is_path = LAUNCHED.iter().any(|l| what.eq_ignore_ascii_case(l));
            is_path.then_some(path.trim())
        });
        named.filter_map(|path| self.missing(path)).next()
    }

    /// The dataset that a path is in, and what of the path is below it.
    fn dataset<'w>(&self, word: &'w str) -> Option<(&'w str, &'w str)> {
        let stage = self.stage.as_ref()?.to_str()?;
        let below = word.strip_prefix(stage)?.strip_prefix('/')?;
        Some(below.split_once('/').unwrap_or((below, "")))
    }

    fn read_only(&self, used: &[(&str, Role)], line: &str) -> String {
        let names = words(line).filter_map(|word| self.dataset(word));
        let mut inputs = names.filter(|(name, _)| used.contains(&(name, Role::In)));
        match inputs.next() {
            Some((name, _)) => format!(
                "It writes to its input `{name}`, which it only reads: declare it as `inout = [\"{name}\"]` if the step is to change it (that makes a new \
                 version), or copy what is written beside into its scratch folder or an output first"
            ),
            None => "It writes where it only reads: its inputs are read-only (a step that changes one declares it as `inout`), and so is \
                     all else of the workflow's on the tiers; outputs and its scratch folder can be written"
                .into(),
        }
    }

    fn exists(&self, used: &[(&str, Role)], line: &str) -> Option<String> {
        let (name, _) = words(line)
            .filter_map(|word| self.dataset(word))
            .find(|(name, below)| below.is_empty() && used.contains(&(name, Role::Out)))?;
        Some(format!(
            "The folder of its output `{name}` is there already, and empty: write into it (`mkdir -p` takes it as it is), or let the program make a \
             folder in it, such as `$TARN_{name}/result`"
        ))
    }

    fn missing(&self, word: &str) -> Option<String> {
        // Programs may print the path that they tried: in the scratch folder.
        let below = self.dataset(word).filter(|(name, _)| *name == SCRATCH);
        let relative = below.map_or(word, |(_, below)| below);
        let path = Path::new(relative);
        let mut components = path.components();
        let is_name = components.any(|c| matches!(c, Component::Normal(_)));
        if path.is_relative() && is_name && self.folder.join(path).exists() {
            return Some(format!(
                "`{relative}` is beside the workflow file, and each step runs in its own scratch folder: write \
                 `$TARN_WORKFLOW_DIR/{relative}`"
            ));
        }
        let outside = self.tmp && tmp::words(word).any(|path| Path::new(path).exists());
        outside.then(|| {
            format!(
                "`{word}` is there, but a step has its own /tmp, /var/tmp and /dev/shm: make it a dataset (`source`), put it into the workflow's folder, or set `tmp = \"shared\"`"
            )
        })
    }
}

/// The words of a line that may be paths, without what messages put around them.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_between =
        |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`' | '‘' | '’' | '(' | ')');
    let words = line.split(is_between);
    words
        .map(|word| word.trim_matches([':', ',', ';']))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_say_is_understood() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("analyse.py"), "").expect("a script");
        let own = StepHintContext {
            stage: Some("/nvme/w/at".into()),
            folder: folder.path(),
            tmp: true,
        };
        let used = [("ref", Role::In), ("out", Role::Out)];
        for (line, hint) in [
            (
                "bash: line 1: /nvme/w/at/ref/ref.fa.fai: Read-only file system",
                "`inout = [\"ref\"]`",
            ),
            (
                "OSError: [Errno 30] Read-only file system: '/nvme/w/at/ref/x'",
                "`inout = [\"ref\"]`",
            ),
            (
                "touch: cannot touch '/nvme/w/x': Read-only file system",
                "declares it as `inout`",
            ),
            (
                "mkdir: cannot create directory ‘/nvme/w/at/out’: File exists",
                "output `out` is there already",
            ),
            (
                "FileExistsError: [Errno 17] File exists: '/nvme/w/at/out'",
                "$TARN_out/result",
            ),
            (
                "python3: can't open file '/nvme/w/at/.scratch/analyse.py': [Errno 2] No such file or directory",
                "$TARN_WORKFLOW_DIR/analyse.py",
            ),
            (
                "sh: 1: cannot open analyse.py: No such file",
                "$TARN_WORKFLOW_DIR/analyse.py",
            ),
        ] {
            let actual = own.of_line(&used, line).unwrap_or_default();
            assert!(actual.contains(hint), "{line}: {actual}");
        }
        // Files in the machine's /tmp, as this folder's are, are not in a step's own.
        let program = folder.path().join("analyse.py").display().to_string();
        let of_openmpi = format!(
            "mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.\n\nNode:       n1\n\
             Executable: {program}\n------\n"
        );
        let of_folder = format!(
            "prterun was unable to launch the specified application as it could not change to the\nspecified working directory:\n\n\
             Working directory: {}\nNode: n1\n",
            folder.path().display()
        );
        let is_in_tmp = tmp::words(&program).next().is_some();
        for tail in [of_openmpi, of_folder] {
            let hint = own.of_launcher(&tail);
            let names = hint.is_some_and(|hint| hint.contains("tmp = \"shared\""));
            assert_eq!(names, is_in_tmp, "{tail}");
        }
        for line in [
            format!(
                "[proxy:0:0@n1] HYDU_create_process (utils/launch/launch.c:74): execvp error on file {program} (No such file or directory)"
            ),
            format!("slurmstepd: error: execve(): {program}: No such file or directory"),
        ] {
            let hint = own.of_line(&used, &line);
            let names = hint.is_some_and(|hint| hint.contains("tmp = \"shared\""));
            assert_eq!(names, is_in_tmp, "{line}");
        }
        let beside = format!("wrote it\nExecutable: {program}\n");
        assert_eq!(own.of_launcher(&beside), None);
        for line in [
            "mkdir: cannot create directory ‘/nvme/w/at/out/deep’: File exists",
            "cat: other.txt: No such file or directory",
            "bash: line 1: none: command not found",
            "all is well with analyse.py",
        ] {
            assert_eq!(own.of_line(&used, line), None, "{line}");
        }
    }
}
