//! Whether this machine lets a step have namespaces: found out by doing it, never by looking at settings.

use crate::helper::command::plain_shell;
use crate::helper::launch::{CommandOutcome, HelperLaunch, HelperProcess, StepStopper, execute};
use crate::helper::protocol::{BindMount, ProcessEnd, Spec, StepIsolation, StepMountPoints};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use tarn_ports::CapabilityError;

/// Folders of probes of one process id in one place: under way on other nodes, or left by those that were killed.
const MAX_PROBES: u32 = 10_000;

/// The use of namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Namespaces {
    /// Those that the machine allows.
    #[default]
    Auto,
    /// None: process groups, real paths, steps of one node only.
    Off,
}

/// Whether steps of several nodes can run on this host, or the reason why not. `helper` is the tarn binary and
/// `folder` any folder that can be written.
///
/// # Errors
/// The reason, as a sentence.
pub fn probe_multi_node(helper: &Path, folder: &Path) -> Result<(), CapabilityError> {
    isolation(helper, folder).map(drop)
}

/// Whether this machine has what the nodes of a step need to have one namespace, or what is missing.
///
/// # Errors
/// The reason, as a sentence.
pub fn probe_shared(helper: &Path) -> Result<(), CapabilityError> {
    crate::helper::provider::gluster::able(helper)
}

/// The isolation that works here: plain namespaces for root, with a user namespace for everybody (and for a root
/// who lacks the capability, as in containers).
pub(crate) fn isolation(helper: &Path, folder: &Path) -> Result<StepIsolation, CapabilityError> {
    let root = rustix::process::geteuid().is_root();
    let ways = if root {
        &[false, true][..]
    } else {
        &[true][..]
    };
    let mut why = None;
    for &user in ways {
        let isolate = StepIsolation::Namespaces { user };
        match try_one(helper, folder, isolate) {
            Ok(()) => return Ok(isolate),
            Err(reason) => why = Some(reason),
        }
    }
    let why = why
        .as_ref()
        .map_or(String::new(), CapabilityError::to_string);
    Err(CapabilityError::new(format_args!(
        "{why} (container runtimes and kernel.unprivileged_userns_clone=0 forbid them)"
    )))
}

/// Runs `true` as a step would be run: mounts, a read-only folder, a host name, a PID namespace.
fn try_one(helper: &Path, folder: &Path, isolate: StepIsolation) -> Result<(), CapabilityError> {
    let io = |e: std::io::Error| CapabilityError::new(format_args!("{}: {e}", folder.display()));
    let work = own_folder(folder).map_err(io)?;
    let (inner, stage) = (work.join("inner"), work.join("at"));
    std::fs::create_dir(&inner).map_err(io)?;
    std::fs::create_dir(&stage).map_err(io)?;
    let null = || OpenOptions::new().write(true).open("/dev/null");
    let launch = |note: PathBuf| HelperLaunch {
        spec: Spec {
            isolate,
            node: "probe".into(),
            rename_host: true,
            locked: vec![work.clone()],
            stage: Some(StepMountPoints {
                folder: stage.clone(),
                names: vec!["seen".into()],
            }),
            binds: vec![BindMount {
                from: inner.clone(),
                to: stage.join("seen"),
                writable: true,
            }],
            listen: None,
            cwd: stage.join("seen"),
            cpus: Vec::new(),
            env: Vec::new(),
            // Writable inside what was bound so, read-only around it.
            command: Some(plain_shell("touch ok && ! touch ../no 2>/dev/null")),
            shared: None,
            tmpfs: None,
            tmp: None,
            images: None,
        },
        note,
        meter: None,
        on_image: None,
    };
    let note = work.join("note");
    let tried = (|| {
        let stop = StepStopper::new().map_err(io)?;
        let mut process = HelperProcess::spawn(helper, null().map_err(io)?).map_err(|e| {
            CapabilityError::new(format_args!(
                "the helper process {} cannot be started: {e}",
                helper.display()
            ))
        })?;
        process.equip(launch(note.clone()));
        let (outcome, _) = execute(&mut [&mut process], &[], None, &stop);
        match outcome {
            CommandOutcome::Ended(ProcessEnd::Exited(0)) => Ok(()),
            CommandOutcome::Broken(why) => Err(CapabilityError::new(why)),
            _ => Err(CapabilityError::new("a folder could not be made read-only")),
        }
    })();
    let _ = std::fs::remove_dir_all(&work);
    tried
}

/// A new folder that nobody else has: all nodes of an allocation try at once in the same place, and process ids of two
/// nodes may be equal.
pub(crate) fn own_folder(folder: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let mut number = 0u32;
    loop {
        let name = format!("probe.{}.{number}", std::process::id());
        let path = folder.join(name);
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < MAX_PROBES => {
                number += 1;
            }
            made => return made.map(|()| path),
        }
    }
}
