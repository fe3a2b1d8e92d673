//! A folder of partitions, the plug-in for HDF5, and Pythons with real HDF5 in them.

use crate::linked::{library, output_of, source};
use crate::nodes::Node;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Writes a file, and waits with it open.
pub(crate) const HOLDS: &str = "
import sys
file = h5py.File('x', 'a')
file.require_dataset('a', (10,), 'i4')[:] = 1
file.flush()
print('ready', flush=True)
sys.stdin.read()
file['a'][:] = 2
file.close()
";

/// Reads what it has written.
pub(crate) const READS: &str = "print(h5py.File('x', 'r')['a'][0])";

/// A program that writes more to a file than there is space for, and continues with data that fits.
pub(crate) const FULL: &str = "
with h5py.File('x', 'w') as file:
    file['first'] = np.arange(1000)
    file.flush()
    late = file.create_dataset('late', (1 << 20,), 'f8')
    try:
        file.create_dataset('much', data=np.ones(16 << 20))
    except OSError as e:
        print('much:', e)
    # There is room for this one.
    late[:] = 7
    file['last'] = np.arange(10)
with h5py.File('x', 'r') as file:
    print(sorted(file), file['first'][999], file['late'][5], file['last'][9])
";

/// Asserts that an output reports a full partition and an undamaged file.
pub(crate) fn is_full_and_whole(output: &str) {
    let lines: Vec<_> = output.lines().collect();
    let [much, whole] = &lines[..] else {
        panic!("{output}")
    };
    assert!(
        much.starts_with("much: ") && much.contains("tarn: cannot make space"),
        "{output}"
    );
    assert!(
        whole.contains("'first', 'last', 'late'") && whole.ends_with("999 7.0 9"),
        "{output}"
    );
}

/// The path of a file that is made once and kept in the target folder.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The folder of the Pythons; none where they cannot be had.
fn pythons() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = kept("..").join("hdf5-python");
        let mut script = Command::new(source("../../scripts/hdf5-python.sh"));
        let made = script.arg(&folder).status().unwrap().success();
        if !made {
            eprintln!("SKIPPED: no h5py from PyPI");
            assert!(std::env::var_os("CI").is_none(), "no h5py from PyPI");
        }
        made.then(|| folder.canonicalize().unwrap())
    });
    made.as_deref()
}

/// The folder of the plug-in, with libtarn.so above it; compiled with these flags.
pub(crate) fn plugin(name: &str, flags: &str) -> PathBuf {
    let folder = kept(name);
    std::fs::create_dir_all(&folder).unwrap();
    // As often as it is there already.
    let _ = std::os::unix::fs::symlink(library().join("libtarn.so"), folder.join("libtarn.so"));
    output_of(
        Command::new(source("../../scripts/hdf5.sh"))
            .arg(&folder)
            .arg(library())
            .env("CFLAGS", flags),
    );
    folder.join("hdf5")
}

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) plugin: PathBuf,
    pythons: &'static Path,
    /// That of tarnd.
    socket: Option<PathBuf>,
}

impl Fixture {
    pub(crate) fn new() -> Option<Self> {
        static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
        Some(Self {
            pythons: pythons()?,
            plugin: PLUGIN.get_or_init(|| plugin("plain", "")).clone(),
            dir: tempfile::tempdir_in("/dev/shm").unwrap(),
            socket: None,
        })
    }

    /// One with a tarnd.
    pub(crate) fn on(&self, node: &Node) -> Self {
        Self {
            pythons: self.pythons,
            plugin: self.plugin.clone(),
            dir: tempfile::tempdir_in("/dev/shm").unwrap(),
            socket: Some(node.socket()),
        }
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The Python of a name: `old` or `new`.
    pub(crate) fn python(&self, which: &str) -> String {
        let python = self.pythons.join(which).join("bin/python");
        python.to_str().unwrap().to_owned()
    }

    /// The path of an h5py that is older than loadable drivers.
    pub(crate) fn before(&self) -> PathBuf {
        self.pythons.join("before")
    }

    /// `tarn` in its folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarn"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env("TARN_HDF5_PLUGIN", &self.plugin)
            .env_remove("HDF5_PLUGIN_PATH")
            .env_remove("LD_LIBRARY_PATH");
        if let Some(socket) = &self.socket {
            command.env("TARN_SOCKET", socket);
        }
        command
    }

    /// The output of `tarn h5` with these arguments, which succeeds.
    pub(crate) fn h5(&self, arguments: &[&str]) -> String {
        output_of(self.command(&["h5"]).args(arguments))
    }

    /// The output of `tarn h5` with these arguments, which is refused.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        failed(self.command(&["h5"]).args(arguments))
    }

    /// A program in Python, whose h5py writes to partitions: `config` is `folder`, or the options of `tarn h5 exec`.
    pub(crate) fn script(&self, which: &str, config: &[&str], text: &str) -> Command {
        let mut command = self.command(&["h5", "exec"]);
        match config {
            ["folder", more @ ..] => command.arg("--folder").arg(self.dir.path()).args(more),
            all => command.args(all),
        };
        let begin = "import h5py, numpy as np\n";
        // By way of env: `exec` does not look which HDF5 that is, which takes as long as the program.
        command.args([
            "--",
            "env",
            &self.python(which),
            "-c",
            &format!("{begin}{text}"),
        ]);
        command
    }

    /// The output of such a program, which succeeds.
    pub(crate) fn run(&self, which: &str, config: &[&str], text: &str) -> String {
        output_of(&mut self.script(which, config, text))
    }

    /// The output of such a program, which fails as Python does and not by a crash.
    pub(crate) fn fails(&self, which: &str, config: &[&str], text: &str) -> String {
        failed(&mut self.script(which, config, text))
    }

    /// One that runs beside the test, once it has said `ready`.
    pub(crate) fn begin(&self, which: &str, config: &[&str], text: &str) -> Beside {
        let mut command = self.script(which, config, text);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Beside { child, lines }
    }

    /// Names in its folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

/// A program that runs; it continues when its input is closed.
pub(crate) struct Beside {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Beside {
    /// Lets it continue, and waits for its end; its output until then.
    pub(crate) fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
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
