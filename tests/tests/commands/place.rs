//! The place for the commands of a page: a repository with everything built, on a machine whose `/tmp`, `/dev/shm`, `/run`,
//! processes and network are its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tarn_tests::{programs, tree};
use tempfile::TempDir;

/// Against commands that never end.
const TIMEOUT: Duration = Duration::from_secs(400);
/// A Makefile whose targets build nothing here: all is built already.
const MAKEFILE: &str =
    "build:\ninstall:\n\tscripts/install.sh target/release $(PREFIX) > /dev/null\n";
/// Makes the machine, then follows the script. `KEEP` are folders that must stay, should they be in `/tmp`.
const MACHINE: &str = r#"
set -e
mkdir -p "$WORK/tmp"
for folder in "$WORK" $KEEP; do
    case $folder/ in /tmp/*)
        mkdir -p "$WORK/tmp/${folder#/tmp/}"
        mount --rbind "$folder" "$WORK/tmp/${folder#/tmp/}" ;;
    esac
done
mount --rbind "$WORK/tmp" /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir -p /run/user/1000
ip link set lo up
cd "$WORK/tarn/$FOLDER"
exec env -u WORK -u KEEP -u FOLDER -u SCRIPT bash "$SCRIPT"
"#;
/// The beginning of every script, on one line. `soon COMMAND...` waits until a command succeeds.
const PRELUDE: &str = r#"set -eE; trap 'echo "FAILED at line $LINENO: $BASH_COMMAND" >&2' ERR; soon() { for _ in $(seq 600); do if "$@" > /dev/null 2>&1; then return; fi; sleep 0.1; done; "$@"; };"#;

/// A command that runs another on such a machine, and kills the processes that it has left.
fn machine() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        command.arg("--map-root-user");
    }
    command
}

/// Why there is no such machine here, if so.
pub(crate) fn lacks() -> Option<String> {
    let tried = machine()
        .args(["sh", "-c", "mount -t tmpfs tmpfs /run && ip link set lo up"])
        .output();
    let tried = tried.expect("unshare");
    (!tried.status.success()).then(|| String::from_utf8_lossy(&tried.stderr).into_owned())
}

/// The folder into which scripts/deps.sh puts Pythons with HDF5.
pub(crate) fn pythons() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.expect("its folder").join("hdf5-python")
}

/// The folder of the build: programs, libraries, and the plug-ins that they find beside them.
pub(crate) struct Built {
    folder: TempDir,
}

impl Built {
    /// Makes it.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        fs::create_dir(folder.path().join("deps")).expect("a folder");
        for name in [
            "tarn",
            "tarn-bench",
            "tarnd",
            "libtarn.so",
            "libtarn.a",
            "libtarn_python.so",
        ] {
            let from = programs::built(name).unwrap_or_else(|e| panic!("{e:#}"));
            let to = folder.path().join(name);
            fs::hard_link(&from, &to)
                .or_else(|_| fs::copy(&from, &to).map(drop))
                .expect("a copy");
        }
        // The same place as cargo's, too: the plug-in of nbdkit looks there.
        fs::hard_link(
            folder.path().join("libtarn.so"),
            folder.path().join("deps/libtarn.so"),
        )
        .expect("a link");
        for script in ["hdf5.sh", "nbdkit.sh", "verbs.sh"] {
            let made = Command::new(tree::root().join("scripts").join(script))
                .arg(folder.path())
                .output()
                .expect(script);
            // 3: the headers that it needs are missing.
            let errors = String::from_utf8_lossy(&made.stderr);
            assert!(
                matches!(made.status.code(), Some(0 | 3)),
                "{script}: {errors}"
            );
        }
        Self { folder }
    }
}

/// A fresh repository for a page.
pub(crate) struct Place {
    work: TempDir,
}

impl Place {
    /// Makes one. The examples are copies; all else is as it is in the repository.
    pub(crate) fn new(built: &Built) -> Self {
        let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let tarn = work.path().join("tarn");
        fs::create_dir_all(tarn.join("target")).expect("a folder");
        fs::create_dir(work.path().join("home")).expect("a folder");
        symlink(built.folder.path(), tarn.join("target/release")).expect("a link");
        for name in [
            "bench",
            "apps",
            "bindings",
            "checkpoint",
            "direct",
            "docs",
            "foundation",
            "plugins",
            "research",
            "services",
            "simulator",
            "transfer",
            "workflow",
            "Cargo.toml",
            "README.md",
            "CONTRIBUTING.md",
            "ARCHITECTURE.md",
            "LICENSE",
        ] {
            symlink(
                tree::root().canonicalize().expect("a path").join(name),
                tarn.join(name),
            )
            .expect("a link");
        }
        for name in ["examples", "scripts", "packaging"] {
            let copied = Command::new("cp")
                .arg("-r")
                .arg(tree::root().join(name))
                .arg(&tarn)
                .status();
            assert!(copied.expect("cp").success());
        }
        fs::write(tarn.join("Makefile"), MAKEFILE).expect("a file");
        Self { work }
    }

    /// The path of a file of this name that is no part of the repository.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Runs a script, whose first line is free, in a folder of the repository: its end and its output.
    pub(crate) fn run(&self, folder: &str, script: &[String]) -> Result<(), String> {
        let file = self.file("page");
        let mut lines = script.to_vec();
        lines[0].insert_str(0, PRELUDE);
        fs::write(&file, lines.join("\n")).expect("a file");
        let log_path = self.file("said");
        let log = fs::File::create(&log_path).expect("a file");
        let tarn = self.work.path().join("tarn");
        let bin = tarn.join("target/release");
        // Debian's programs before others of the same names.
        let path = format!(
            "{}:/usr/bin:/bin:/usr/sbin:/sbin:{}",
            bin.display(),
            std::env::var("PATH").expect("a PATH")
        );
        let root = tree::root().canonicalize().expect("a path");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("its folder");
        let mut command = machine();
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["TARN", "XDG_", "CARGO_", "LD_", "AWS_", "TMPDIR"]
                .iter()
                .any(|begin| name.starts_with(begin))
            {
                command.env_remove(&*name);
            }
        }
        let mut child = command
            .args(["bash", "-c", MACHINE])
            .env("WORK", self.work.path())
            .env("KEEP", format!("{} {}", root.display(), target.display()))
            .env("FOLDER", folder)
            .env("SCRIPT", &file)
            .env("PATH", path)
            .env("HOME", self.file("home"))
            .env("XDG_RUNTIME_DIR", "/run/user/1000")
            .env("TARN_SOURCE", &tarn)
            .env("TARN_DEPS", "skip")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONS", pythons())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("unshare");
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait().expect("its end") {
                break Some(status);
            }
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let output = fs::read(&log_path).expect("what it said");
        let output = String::from_utf8_lossy(&output);
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}\n{output}")),
            None => Err(format!("it does not end\n{output}")),
        }
    }
}
