//! A real munge daemon for tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tarn_munge::Munge;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// A munge daemon with a key of its own.
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// `None`, with a loud message, if there is no munge.
    pub(crate) fn start(key: u8) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("key"), [key; 128]).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path("key"), private).unwrap();
        let started = Command::new("munged")
            .args(["--foreground", "--force", "--num-threads", "2"])
            .args(["--socket", &path("socket"), "--key-file", &path("key")])
            .args(["--pid-file", &path("pid"), "--log-file", &path("log")])
            .args(["--seed-file", &path("seed")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(e) => {
                println!("SKIPPED: munge is not installed (munged: {e})");
                return None;
            }
        };
        let daemon = Self { child, folder };
        let until = Instant::now() + SOON;
        while daemon.munge().encode(b"x", 0).is_err() {
            assert!(Instant::now() < until, "munged does not begin");
            thread::sleep(Duration::from_millis(10));
        }
        Some(daemon)
    }

    /// The path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn munge(&self) -> Munge {
        Munge::at(self.socket())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
