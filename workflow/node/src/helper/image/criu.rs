//! CRIU, as it is called.

use super::{Criu, StepImagePlan};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use tarn_ports::CapabilityError;

/// Names the program where it is not on `PATH`.
const VARIABLE: &str = "TARN_CRIU";
/// Folders to search if `PATH`, as of ordinary users, does not have it.
const BESIDES: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];
/// Files that are open and have no name any more are in the image up to this size, in bytes; CRIU's own bound is 1 MiB.
const GHOSTS: u64 = 1 << 30;
/// Messages that it always prints without rights over the whole machine, which are harmless; and one that only reports its
/// failure.
const HARMLESS: [&str; 3] = [
    "Can't setup RLIMIT_NOFILE",
    "net: Unexpected error: -1",
    "exited, status=",
];
/// Of its errors, so many are shown.
const SHOWN: usize = 2;

/// The program that the environment names.
pub(super) fn find(env: &[(OsString, OsString)]) -> Result<PathBuf, CapabilityError> {
    let get = |name: &str| {
        env.iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_os_str())
    };
    if let Some(named) = get(VARIABLE) {
        let named = PathBuf::from(named);
        return match named.is_absolute() && named.is_file() {
            true => Ok(named),
            false => Err(CapabilityError::new(format_args!(
                "{VARIABLE} names {}, which is no file with an absolute path",
                named.display()
            ))),
        };
    }
    let path = get("PATH").unwrap_or(OsStr::new("/usr/bin:/bin"));
    let folders = std::env::split_paths(path).chain(BESIDES.iter().map(PathBuf::from));
    let mut found = folders
        .map(|f| f.join("criu"))
        .filter(|p| p.is_absolute() && p.is_file());
    found.next().ok_or_else(|| {
        CapabilityError::new(format_args!("there is no `criu` on PATH: install CRIU 4.0 or later, or name it with {VARIABLE}=/path/to/criu"))
    })
}

impl Criu {
    pub(super) fn new(program: PathBuf, unprivileged: bool) -> Self {
        Self {
            program,
            unprivileged,
        }
    }

    fn command(&self, verb: &str, images: &Path, log: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.arg(verb).arg("-D").arg(images).args(["-o", log]);
        // Its processes stay in the control group that this attempt runs in.
        command.args(["--manage-cgroups=ignore", "--file-locks"]);
        // Programs continue to use the instructions that they found: a processor without one of them is refused.
        command.arg("--cpu-cap=ins");
        if self.unprivileged {
            command.arg("--unprivileged");
        }
        command
    }
}

impl StepImagePlan {
    /// Writes what these processes are to a folder. `script` is called while they stand still. Of a file without a name, which nobody
    /// can reckon with before, at most half of the `spare` bytes of the tier: they continue before anything can be removed.
    pub(super) fn dump(&self, root: i32, images: &Path, script: &Path, spare: u64) -> Command {
        let mut command = self.criu.command("dump", images, DUMP_LOG);
        command.args(["--leave-running", "--ghost-limit"]);
        command.arg((spare / 2).min(GHOSTS).to_string());
        if self.alone.is_some() {
            // Nothing passes between processes of which one is written already. This way needs no program that may not be there.
            command.args([CONNECTIONS, "--network-lock", "nftables"]);
        }
        command
            .arg("-t")
            .arg(root.to_string())
            .arg("--action-script")
            .arg(script);
        command
    }

    /// Makes processes of it again. They print to the command's standard input instead of that pipe.
    pub(super) fn restore(&self, images: &Path, pipe: &str) -> Command {
        let mut command = self.criu.command("restore", images, RESTORE_LOG);
        command.args(["--restore-detached", "--inherit-fd"]);
        command.arg(format!("fd[0]:{pipe}"));
        if self.alone.is_some() {
            command.arg(CONNECTIONS);
        }
        command
    }
}

const CONNECTIONS: &str = "--tcp-established";
pub(super) const DUMP_LOG: &str = "dump.log";
pub(super) const RESTORE_LOG: &str = "restore.log";

/// The reason in its log.
pub(super) fn reason(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    reason_in(&String::from_utf8_lossy(&text))
}

fn reason_in(log: &str) -> String {
    // `(00.012345)    300: Error (criu/files.c:12): words`
    let errors = log.lines().filter_map(|l| l.split_once("Error ("));
    let errors =
        errors.filter_map(|(_, rest)| rest.split_once("): ").map(|(_, words)| words.trim()));
    let known = |words: &&str| {
        let last = words.ends_with("FAILED.");
        !last && !HARMLESS.iter().any(|h| words.contains(h))
    };
    let first: Vec<&str> = errors.filter(known).take(SHOWN).collect();
    match first.is_empty() {
        true => "CRIU failed and gave no reason".into(),
        false => format!("CRIU: {}", first.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_its_first_errors_but_those_that_do_no_harm() {
        let log = "(00.000018) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: No\n\
                   (00.1) Warn  (criu/net.c:1): tun\n\
                   (00.2) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.\n\
                   (00.3)    301: Error (criu/cr-dump.c:1681): Dump files (pid: 300) failed with -1\n\
                   (00.3) Error (criu/x.c:1): third\n(00.4) Error (criu/cr-dump.c:2111): Dumping FAILED.\n";
        assert_eq!(
            reason_in(log),
            "CRIU: inet: Connected TCP socket, consider using --tcp-established option.; Dump files (pid: 300) failed with -1"
        );
        assert_eq!(reason_in("nothing"), "CRIU failed and gave no reason");
    }

    #[test]
    fn a_program_that_is_named_must_be_there() {
        let env = |n: &str, v: &str| vec![(OsString::from(n), OsString::from(v))];
        assert_eq!(find(&env("TARN_CRIU", "/bin/sh")), Ok("/bin/sh".into()));
        assert!(
            find(&env("TARN_CRIU", "/no/such"))
                .unwrap_err()
                .to_string()
                .contains("no file")
        );
        assert!(
            find(&env("TARN_CRIU", "criu")).is_err(),
            "steps run in other folders"
        );
    }
}
