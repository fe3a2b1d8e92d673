//! A folder with partitions, and servers of them.
#![allow(dead_code)]

use crate::program::tarn;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use tarn_partitions::Partition;
use tempfile::TempDir;

/// Bytes of a partition.
pub(crate) const SIZE: u64 = 16 << 20;
const PLUGIN: &str = "nbdkit-tarn-plugin.so";

/// Whether a program is not here; says so.
pub(crate) fn missing(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        eprintln!("SKIPPED: no {program}");
    }
    !found
}

/// A program that finds its libraries by itself, not by cargo's settings, and ends after a minute at the latest.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new("/usr/bin/timeout");
    command.arg("60").arg(path).env_remove("LD_LIBRARY_PATH");
    command
}

/// The output of a command that succeeds.
pub(crate) fn output_of(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {error}");
    String::from_utf8(out.stdout).unwrap()
}

/// The output of a command that fails.
pub(crate) fn fails(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(!out.status.success(), "{command:?}: {text}");
    text
}

/// Whether a command succeeds.
pub(crate) fn ends_well(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// An address of this host that nobody listens at.
pub(crate) fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The folder of `tarn`, with the plug-in beside it, which is built once.
fn built() -> Option<&'static Path> {
    static BUILT: OnceLock<bool> = OnceLock::new();
    let folder = tarn().parent().unwrap();
    let built = BUILT.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/nbdkit.sh");
        let status = Command::new(script).arg(folder).status().unwrap();
        // 3: there is no nbdkit to build it for.
        assert!(matches!(status.code(), Some(0 | 3)), "{status}");
        status.success()
    });
    if !built {
        eprintln!("SKIPPED: no nbdkit-plugin-dev");
    }
    built.then_some(folder)
}

pub(crate) struct Fixture {
    dir: TempDir,
    built: &'static Path,
    /// That of tarnd.
    socket: Option<PathBuf>,
}

impl Fixture {
    /// `None` if one of these programs or nbdkit is missing.
    pub(crate) fn new(programs: &[&str]) -> Option<Self> {
        if ["nbdkit"].iter().chain(programs).any(|p| missing(p)) {
            return None;
        }
        Some(Self::with(built()?, None))
    }

    /// One with the tarnd that has this socket.
    pub(crate) fn with_tarnd(&self, socket: PathBuf) -> Self {
        Self::with(self.built, Some(socket))
    }

    fn with(built: &'static Path, socket: Option<PathBuf>) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        Self { dir, built, socket }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Of a partition, as it is named.
    pub(crate) fn name(&self, partition: &str) -> String {
        self.path(partition).display().to_string()
    }

    /// The file of a partition.
    pub(crate) fn file(&self, partition: &str) -> PathBuf {
        self.path(&format!("{partition}.partition"))
    }

    /// Makes one.
    pub(crate) fn partition(&self, name: &str) -> String {
        Partition::create(&self.path(name), SIZE, Vec::new()).unwrap();
        self.name(name)
    }

    pub(crate) fn plugin(&self) -> PathBuf {
        self.built.join(PLUGIN)
    }

    pub(crate) fn library(&self) -> PathBuf {
        let places = ["deps/libtarn.so", "libtarn.so"].map(|place| self.built.join(place));
        places.into_iter().find(|place| place.exists()).unwrap()
    }

    /// `tarn block serve` by this command.
    fn server<S: AsRef<std::ffi::OsStr>>(&self, mut command: Command, arguments: &[S]) -> Command {
        command
            .args(["block", "serve"])
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null());
        if let Some(socket) = &self.socket {
            command.env("TARN_SOCKET", socket);
        }
        command
    }

    /// A server, which ends when the returned value is dropped.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Served {
        let mut tarn = self
            .server(Command::new(tarn()), arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut uri = String::new();
        let mut out = BufReader::new(tarn.stdout.take().unwrap());
        out.read_line(&mut uri).unwrap();
        let uri = uri.trim().to_owned();
        let mut served = Served { tarn, uri };
        if served.uri.is_empty() {
            panic!("{:?}", served.ended());
        }
        served
    }

    /// Its output when it does not serve.
    pub(crate) fn refused<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> String {
        let command = program(tarn());
        fails(&mut self.server(command, arguments))
    }

    /// A `tarn` alone in a folder, and where it looks for the plug-in.
    pub(crate) fn alone(&self) -> (PathBuf, PathBuf) {
        let folder = self.path("alone");
        fs::create_dir(&folder).unwrap();
        let alone = folder.join("tarn");
        fs::copy(tarn(), &alone).unwrap();
        (alone, folder.join(PLUGIN))
    }

    /// Makes a plug-in with flags of the compiler.
    pub(crate) fn compile(&self, flags: &[&str], to: &Path) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let library = self.library();
        let folder = library.parent().unwrap();
        output_of(
            Command::new("cc")
                .args(["-std=c11", "-g", "-fPIC", "-shared"])
                .args(flags)
                .arg("-o")
                .arg(to)
                .arg("-I")
                .arg(root.join("bindings/c/include"))
                .arg(root.join("plugins/nbdkit/nbdkit-tarn-plugin.c"))
                .arg("-L")
                .arg(folder)
                .arg(format!("-Wl,-rpath,{}", folder.display()))
                .arg("-ltarn"),
        );
    }

    /// A folder with an authority, and certificates of it for a server of this host and for a client.
    pub(crate) fn authority(&self, name: &str) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        let run = |arguments: &[&str]| {
            output_of(
                Command::new("certtool")
                    .args(arguments)
                    .current_dir(&folder),
            )
        };
        for who in ["ca", "server", "client"] {
            let key = format!("{who}-key.pem");
            run(&["--generate-privkey", "--key-type=ecdsa", "--outfile", &key]);
            let info = match who {
                "ca" => "cn = tarn's tests\nca\ncert_signing_key\n",
                "server" => "cn = here\nip_address = 127.0.0.1\ntls_www_server\nsigning_key\n",
                _ => "cn = a client\ntls_www_client\nsigning_key\n",
            };
            fs::write(folder.join("info"), info).unwrap();
            let certificate = format!("{who}-cert.pem");
            let own = ["--load-privkey", &key, "--outfile", &certificate];
            let mut arguments = vec!["--template", "info"];
            match who {
                "ca" => arguments.push("--generate-self-signed"),
                _ => arguments.extend([
                    "--generate-certificate",
                    "--load-ca-certificate",
                    "ca-cert.pem",
                    "--load-ca-privkey",
                    "ca-key.pem",
                ]),
            }
            arguments.extend(own);
            run(&arguments);
        }
        folder
    }
}

pub(crate) struct Served {
    tarn: Child,
    pub(crate) uri: String,
}

impl Served {
    /// Runs these commands of qemu-io, one after the other, each of which succeeds.
    pub(crate) fn io(&self, commands: &[&str]) {
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw"]);
        for command in commands {
            io.args(["-c", command]);
        }
        let text = output_of(io.arg(&self.uri));
        assert!(!text.contains("verification failed"), "{text}");
    }

    /// Four clients of fio at the same time, each with so many bytes of its own, which find what they have written.
    pub(crate) fn clients(&self, each: u64, options: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let mut fio = Command::new("fio");
        fio.args(["--name=clients", "--ioengine=nbd", "--thread=1"])
            .args(["--numjobs=4", "--iodepth=8", "--output-format=json"])
            .args(["--verify=crc32c", "--verify_fatal=1"])
            .args(options)
            .args([
                format!("--size={each}"),
                format!("--offset_increment={each}"),
                format!("--uri={}", self.uri),
            ])
            .current_dir(folder.path());
        let text = output_of(&mut fio);
        assert_eq!(text.matches("\"error\" : 0").count(), 4, "{text}");
    }

    fn signal(&self, process: u32, signal: Signal) {
        let pid = Pid::from_raw(process as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn nbdkit(&self) -> u32 {
        let tarn = self.tarn.id();
        let children = format!("/proc/{tarn}/task/{tarn}/children");
        let text = fs::read_to_string(children).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn kill_nbdkit(&self) {
        self.signal(self.nbdkit(), Signal::KILL);
    }

    pub(crate) fn terminate(&self) {
        self.signal(self.tarn.id(), Signal::TERM);
    }

    /// Kills `tarn`, and waits until nbdkit is gone too.
    pub(crate) fn kill(&mut self) {
        let nbdkit = format!("/proc/{}", self.nbdkit());
        self.tarn.kill().unwrap();
        self.tarn.wait().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while fs::read_to_string(format!("{nbdkit}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        {
            assert!(std::time::Instant::now() < until, "nbdkit outlives tarn");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        Path::new(&format!("/proc/{}", self.nbdkit())).exists()
    }

    /// Its exit code and its messages, once it has ended.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        let mut messages = String::new();
        let mut error = self.tarn.stderr.take().unwrap();
        error.read_to_string(&mut messages).unwrap();
        (self.tarn.wait().unwrap().code(), messages)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.tarn.try_wait() {
            self.terminate();
            let _ = self.tarn.wait();
        }
    }
}

/// A qemu-io that stays connected.
pub(crate) struct Client {
    io: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn new(served: &Served) -> Self {
        let mut io = Command::new("qemu-io")
            .args(["-f", "raw", &served.uri])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = io.stdin.take().unwrap();
        let output = BufReader::new(io.stdout.take().unwrap());
        Self { io, input, output }
    }

    /// The first line of its output to a command.
    pub(crate) fn io(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// All that it says until it ends, of these commands too.
    pub(crate) fn rest(mut self, commands: &str) -> String {
        self.input.write_all(commands.as_bytes()).unwrap();
        drop(self.input);
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        self.io.wait().unwrap();
        text
    }
}
