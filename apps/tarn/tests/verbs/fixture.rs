//! A folder of devices, the plug-in, and pairs of programs.

use crate::linked::{library, output_of, source};
use crate::nodes::ports::free_port;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Until a program listens, or another says what it is to say.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The folder of the plug-in, with libtarn.so above it, compiled with these flags; none without libibverbs' header.
pub(crate) fn plugin(name: &str, flags: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs-{name}"));
    fs::create_dir_all(&folder).unwrap();
    // As often as it is there already.
    let _ = std::os::unix::fs::symlink(library().join("libtarn.so"), folder.join("libtarn.so"));
    let mut script = Command::new(source("../../scripts/verbs.sh"));
    let made = script.arg(&folder).arg(library()).env("CFLAGS", flags);
    match made.status().unwrap().code() {
        Some(0) => Some(folder.join("verbs")),
        Some(3) => None,
        other => panic!("scripts/verbs.sh: {other:?}"),
    }
}

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    plugin: PathBuf,
}

impl Fixture {
    pub(crate) fn new() -> Option<Self> {
        static PLUGIN: OnceLock<Option<PathBuf>> = OnceLock::new();
        let found =
            ["/usr/bin/ibv_devinfo", "/usr/bin/ib_write_bw"].map(|path| Path::new(path).is_file());
        let plugin = PLUGIN.get_or_init(|| plugin("plain", "")).clone();
        let (Some(plugin), [true, true]) = (plugin, found) else {
            eprintln!("SKIPPED: no libibverbs-dev, ibverbs-utils or perftest");
            assert!(
                std::env::var_os("CI").is_none(),
                "no libibverbs-dev, ibverbs-utils or perftest"
            );
            return None;
        };
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        Some(Self { dir, plugin })
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.plugin.join("libtarnverbs.so")
    }

    /// The folder of devices.
    pub(crate) fn devices(&self) -> PathBuf {
        self.dir.path().join("devices")
    }

    /// Whether no device is left.
    pub(crate) fn is_tidy(&self) -> bool {
        fs::read_dir(self.devices()).unwrap().next().is_none()
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn tarn(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarn"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env("TARN_VERBS_PLUGIN", &self.plugin)
            .env("TARN_VERBS_DIR", self.devices())
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH");
        command
    }

    /// A program with the device.
    pub(crate) fn exec(&self, program: &[&str]) -> Command {
        let mut command = self.tarn(&["verbs", "exec", "--"]);
        command.args(program);
        command
    }

    /// The path of one of the tests' own programs, of libibverbs alone, or of the example.
    pub(crate) fn program(&self, name: &str, flags: &str) -> String {
        let path = self.path(name);
        let folder = if name == "example" { "" } else { "tests/" };
        output_of(
            Command::new("cc")
                .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"])
                .args(["-D_GNU_SOURCE", "-o", &path])
                .arg(source(&format!("../../plugins/verbs/{folder}{name}.c")))
                .args(flags.split_whitespace())
                .args(["-libverbs", "-lpthread"]),
        );
        path
    }

    /// The outputs of the server and the client of such a program; the server has these additional arguments.
    pub(crate) fn both(&self, program: &str, options: &[&str], server: &[&str]) -> [String; 2] {
        let port = free_port().to_string();
        let command = |more: &[&str]| {
            let mut command = self.exec(&[program, "-p", &port]);
            command.args(options).args(more);
            command
        };
        let mut server = command(server);
        let mut server = server
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + TIMEOUT;
        while !listens(port.parse().unwrap()) {
            assert!(
                Instant::now() < until && server.try_wait().unwrap().is_none(),
                "{program}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = output_of(&mut command(&["localhost"]));
        let output = server.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{program} {options:?}: {text}");
        [text, client]
    }
}

/// Whether somebody listens there, whom a connection would disturb.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
        })
    })
}

/// A program that one talks to.
pub(crate) struct Talks {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Talks {
    pub(crate) fn begin(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn message(&mut self, text: &str) {
        let to = self.child.stdin.as_mut().unwrap();
        to.write_all(text.as_bytes()).unwrap();
        to.flush().unwrap();
    }

    /// The rest of its output, when it ends well.
    pub(crate) fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.lines.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The output of a command that fails by itself.
pub(crate) fn failed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(
        status.code().is_some_and(|code| code > 0),
        "{status}: {text}"
    );
    text
}
