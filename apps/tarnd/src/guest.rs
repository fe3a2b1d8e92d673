//! The program that a tarnd was started for (`tarnd ... -- COMMAND`), and the step of a run that it may be
//! (`tarnd --step -- COMMAND`): then everything is named as the step sees it, in its own namespaces.

use crate::TarndError;
use crate::options::Options;
use anyhow::{Context, anyhow};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_proto::local::{Access, SpaceSpec};
use tarn_types::codes::Exit;

/// Names of the step's datasets, with spaces between them; the folder of each is in `$TARN_<name>`.
const DATASETS: &str = "TARN_DATASETS";
/// The dataspace of the step's scratch folder.
const SCRATCH: &str = "scratch";
/// Bytes of a socket's path that fit into its address everywhere.
const MAX_SOCKET: usize = 100;

/// The program.
pub(crate) struct ChildProgram {
    pid: Pid,
    ended: Arc<OnceLock<ExitStatus>>,
}

impl ChildProgram {
    /// Starts it, with `$TARN_SOCKET`; a byte is written to `wake` when it has ended.
    pub(crate) fn start(
        command: &[OsString],
        socket: &Path,
        mut wake: UnixStream,
    ) -> anyhow::Result<Option<Self>> {
        let Some((program, arguments)) = command.split_first() else {
            return Ok(None);
        };
        let started = Command::new(program)
            .args(arguments)
            .env("TARN_SOCKET", socket)
            .spawn();
        let mut child = started.with_context(|| format!("cannot start {}", program.display()))?;
        let pid = Pid::from_child(&child);
        let ended = Arc::new(OnceLock::new());
        let end = Arc::clone(&ended);
        std::thread::Builder::new()
            .name("guest".into())
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    let _ = end.set(status);
                }
                let _ = wake.write_all(&[0]);
            })
            .context("cannot start a thread")?;
        Ok(Some(Self { pid, ended }))
    }

    /// How it has ended, as a shell reports it.
    pub(crate) fn code(&self) -> Option<u8> {
        let status = self.ended.get()?;
        let code = status.code().or_else(|| Some(128 + status.signal()?));
        Some(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX))
    }

    /// Passes SIGTERM on.
    pub(crate) fn terminate(&self) {
        // It may have ended meanwhile.
        let _ = kill_process(self.pid, Signal::TERM);
    }
}

/// Folders of a step's tarnd; removed at its end.
pub(crate) struct StepFolders(Vec<PathBuf>);

impl Drop for StepFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The options of a step's tarnd: socket, state and dataspaces follow from the step's environment.
pub(crate) fn of_step(mut options: Options) -> Result<(Options, StepFolders), TarndError> {
    let usage = |text: &str| TarndError::new(Exit::Usage, anyhow!(text.to_owned()));
    if options.command.is_empty() {
        return Err(usage("--step needs a command: tarnd --step -- COMMAND"));
    }
    let scratch = std::env::var_os("TARN_SCRATCH").map(PathBuf::from);
    let scratch = scratch.ok_or_else(|| {
        usage("this is no step of a run (TARN_SCRATCH is not set); `tarnd --step` is for commands of workflow files")
    })?;
    let state = |e: anyhow::Error| TarndError::new(Exit::State, e);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let own = format!(
        "{}-{:x}",
        std::process::id(),
        now.map_or(0, |d| d.as_nanos())
    );
    // Hidden from programs' tasks, as all that begins so.
    let folder = scratch.join(format!(".tarn-step-{own}"));
    let mut home = StepFolders(Vec::new());
    make(&folder).map_err(state)?;
    home.0.push(folder.clone());
    if let Ok(node) = std::env::var("TARN_NODE") {
        options.node_name = Some(node);
    }
    let mut socket = folder.join("socket");
    if socket.as_os_str().len() > MAX_SOCKET {
        let short = std::env::temp_dir().join(&own);
        let short = match short.as_os_str().len() + "/socket".len() > MAX_SOCKET {
            true => Path::new("/tmp").join(format!("tarn-step-{own}")),
            false => short,
        };
        make(&short).map_err(state)?;
        home.0.push(short.clone());
        socket = short.join("socket");
    }
    options.socket = Some(socket);
    options.state = Some(folder.join("state"));
    for name in std::env::var(DATASETS)
        .unwrap_or_default()
        .split_whitespace()
    {
        let path = std::env::var_os(format!("TARN_{name}")).map(PathBuf::from);
        // A dataset may be a single file: that is no space.
        if let Some(path) = path.filter(|path| path.is_dir()) {
            options
                .spaces
                .push((name.to_owned(), space(&path).map_err(state)?));
        }
    }
    options
        .spaces
        .push((SCRATCH.into(), space(&scratch).map_err(state)?));
    Ok((options, home))
}

fn make(folder: &Path) -> anyhow::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.mode(0o700).create(folder);
    made.with_context(|| format!("cannot make {}", folder.display()))
}

/// A folder of the step: one mounted read-only can be read only; a writable one has as capacity its content and the space that is
/// free on its file system now.
fn space(path: &Path) -> anyhow::Result<SpaceSpec> {
    let about = statvfs(path).with_context(|| format!("cannot examine {}", path.display()))?;
    let write = !about.f_flag.contains(StatVfsMountFlags::RDONLY);
    let held = match write {
        true => Trees::new()
            .stored(path)
            .map_err(|e| anyhow!(e.to_string()))?,
        false => 0,
    };
    Ok(SpaceSpec {
        root: path.as_os_str().as_bytes().into(),
        capacity: about
            .f_bavail
            .saturating_mul(about.f_frsize)
            .saturating_add(held)
            .max(1),
        quota: 0,
        slots: 0,
        everyone: Access {
            read: true,
            write,
            manage: false,
        },
        users: Vec::new(),
    })
}
