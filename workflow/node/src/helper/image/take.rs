//! Taking an image: `tarn __image`, which a step's helper starts in the namespaces of the step, and which CRIU calls again while the
//! step stands still.

use super::kept::{clone, published};
use super::{
    ABOUT, CONTENT, FORMATS, MANIFEST, NamedPipe, OWN, PROCESSES, StepImage, StepImagePlan, TAKING,
};
use super::{alone, criu, pids};
use crate::helper::protocol::ProcessEnd;
use crate::storage::store::{failure, io_failure, make_folder, warn};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Instant;
use tarn_ports::{Control, Mover};
use tarn_sys::namespace::Clocks;
use tarn_sys::{network, process};
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::{Imaged, RunError, RunErrorKind};
use tarn_types::units::Bytes;

/// The first argument that makes the tarn binary take an image.
pub const IMAGE_ARGUMENT: &str = "__image";
/// The variable with its orders, for it and for the program that CRIU calls.
pub(super) const ORDER: &str = "TARN_IMAGE";
/// CRIU's word for how far it is.
const ACTION: &str = "CRTOOLS_SCRIPT_ACTION";
/// Beside what is known of an image before, its lists and CRIU's small files.
const BESIDE: u64 = 1 << 20;

/// An image that is to be taken.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Take {
    pub(super) plan: StepImagePlan,
    pub(super) id: CheckpointId,
    pub(super) root: i32,
    pub(super) pipe: String,
}

impl Take {
    fn taking(&self) -> PathBuf {
        self.plan.folder.join(TAKING)
    }

    fn content(&self) -> PathBuf {
        self.taking().join(CONTENT)
    }
}

/// Whether this process is what CRIU calls while it takes an image.
pub fn is_called() -> bool {
    let set = |name| std::env::var_os(name).is_some();
    std::env::args_os().len() == 1 && set(ACTION) && set(ORDER)
}

/// The entry point of both.
pub fn main(mover: &dyn Mover) -> ExitCode {
    if std::env::args().nth(2).as_deref() == Some(alone::TRIAL) {
        return alone::on_trial();
    }
    let order = std::env::var(ORDER).ok();
    let Some(take) = order.and_then(|o| serde_json::from_str::<Take>(&o).ok()) else {
        warn("`tarn __image` is started by tarn only");
        return ExitCode::FAILURE;
    };
    if let Ok(action) = std::env::var(ACTION) {
        return match action == "post-dump" {
            true => called(&take, mover),
            false => ExitCode::SUCCESS,
        };
    }
    let began = Instant::now();
    let mut torn = false;
    let taken = take_one(&take, mover, began, &mut torn);
    let what = taken.unwrap_or_else(|f| Imaged::NotTaken { why: f.message });
    // Removes an image that was not taken.
    let _ = mover.remove(&take.taking());
    match serde_json::to_string(&what) {
        Ok(text) => println!("{text}"),
        Err(e) => warn(&e.to_string()),
    }
    ExitCode::from(if torn { TORN } else { 0 })
}

/// The exit code of a taker when CRIU was killed while it may have held the processes.
const TORN: u8 = 3;

/// Whether the step's connections may be held by somebody who is not there any more.
pub(super) fn is_torn(taker: ProcessEnd) -> bool {
    taker != ProcessEnd::Exited(0)
}

/// The processes stand still: their files are copied, and what else must be known of them is noted.
fn called(take: &Take, mover: &dyn Mover) -> ExitCode {
    let own = take.content().join(OWN);
    let done = copy(take, mover, &own).and_then(|pipes| note(take, pipes));
    let Err(f) = done else {
        return ExitCode::SUCCESS;
    };
    // The space is theirs when they continue.
    let _ = mover.remove(&own);
    let _ = std::fs::write(take.taking().join(WHY), f.message);
    ExitCode::FAILURE
}

/// Why the files could not be copied: CRIU only knows that its script has failed.
const WHY: &str = "why";

fn copy(take: &Take, mover: &dyn Mover, own: &Path) -> Result<Vec<NamedPipe>, RunError> {
    if let Some(root) = Pid::from_raw(take.root) {
        alone::holds_all(root, take.plan.alone.is_some())?;
    }
    make_folder(own)?;
    let mut pipes = Vec::new();
    for (name, folder) in &take.plan.own {
        let of_it = clone(mover, folder, &own.join(name), &Control::default())?;
        pipes.extend(of_it.into_iter().map(|(path, mode)| NamedPipe {
            of: name.clone(),
            path,
            mode,
        }));
    }
    Ok(pipes)
}

fn note(take: &Take, pipes: Vec<NamedPipe>) -> Result<(), RunError> {
    let about = take.content().join(ABOUT);
    let io = |e: std::io::Error| io_failure("write", &about, &e);
    let clocks = Clocks::now();
    let addresses = match take.plan.alone {
        Some(_) => network::addresses().map_err(io)?,
        None => Vec::new(),
    };
    let image = StepImage {
        format: match take.plan.alone {
            Some(_) => *FORMATS.end(),
            None => *FORMATS.start(),
        },
        id: take.id,
        root: take.root,
        pipe: take.pipe.clone(),
        free: pids::free().map_err(io)?,
        monotonic: clocks.monotonic,
        boottime: clocks.boottime,
        addresses,
        pipes,
    };
    let text = serde_json::to_vec(&image).map_err(|e| io(e.into()))?;
    std::fs::write(&about, text).map_err(io)
}

fn take_one(
    take: &Take,
    mover: &dyn Mover,
    began: Instant,
    torn: &mut bool,
) -> Result<Imaged, RunError> {
    let (folder, taking, content) = (&take.plan.folder, take.taking(), take.content());
    mover.remove(&taking)?;
    // The newest stays until this one is whole.
    for (_, older) in published(folder).iter().rev().skip(1) {
        mover.remove(older)?;
    }
    let spare = free_tier_space(take, mover)?;
    let processes = content.join(PROCESSES);
    make_folder(&processes)?;
    let stopped = dump(take, &processes, spare, torn)?;
    let manifest = mover.digest(&content, &Control::default())?;
    let listed = taking.join(MANIFEST);
    std::fs::write(&listed, manifest.encode()).map_err(|e| io_failure("write", &listed, &e))?;
    let published = folder.join(take.id.to_string());
    let io = |e: std::io::Error| io_failure("sync", &taking, &e);
    if take.plan.sync {
        sync(&taking).map_err(io)?;
    }
    std::fs::rename(&taking, &published).map_err(|e| io_failure("rename", &taking, &e))?;
    if take.plan.sync {
        File::open(folder).and_then(|f| f.sync_all()).map_err(io)?;
    }
    Ok(Imaged::Taken {
        id: take.id,
        bytes: mover.stored(&published)?,
        stopped,
        took: nanos(began),
    })
}

/// Of CRIU's words, those for what an image holds of a step that is alone.
const HELD_ALONE: [&str; 2] = ["Connected TCP socket", "SysVIPC shmem"];

/// Has CRIU write what the processes are, on a tier with so many bytes to spare; how long they stood still for it, at most.
fn dump(take: &Take, processes: &Path, spare: u64, torn: &mut bool) -> Result<u64, RunError> {
    let exe = std::env::current_exe().map_err(|e| failure(RunErrorKind::Io, e.to_string()))?;
    let begun = Instant::now();
    let mut command = take.plan.dump(take.root, processes, &exe, spare);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status();
    let status =
        status.map_err(|e| failure(RunErrorKind::Io, format!("CRIU cannot be started: {e}")))?;
    if status.success() {
        return Ok(nanos(begun));
    }
    *torn = status.code().is_none();
    let own = std::fs::read_to_string(take.taking().join(WHY));
    let mut why = own.unwrap_or_else(|_| criu::reason(&processes.join(criu::DUMP_LOG)));
    if take.plan.alone.is_none() && HELD_ALONE.iter().any(|h| why.contains(h)) {
        why.push_str(
            "; images of a step with `alone = true` hold what is between its own processes",
        );
    }
    Err(failure(RunErrorKind::Io, why))
}

/// Bytes that the tier has beside those that it takes: a step is not to find its tier full because of an image.
fn free_tier_space(take: &Take, mover: &dyn Mover) -> Result<u64, RunError> {
    let folder = &take.plan.folder;
    let free = rustix::fs::statvfs(folder).map_err(|e| io_failure("look at", folder, &e.into()))?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    let root = Pid::from_raw(take.root);
    let below = root.map(process::descendants).transpose();
    let below = below.map_err(|e| failure(RunErrorKind::Io, e.to_string()))?;
    let all = root.into_iter().chain(below.into_iter().flatten());
    let mut needed = all.map(in_memory).fold(BESIDE, u64::saturating_add);
    let shared = mover.capabilities(folder)?.reflink;
    // Memory is on no tier.
    let copied = |name: &str| !shared || name == alone::MEMORY;
    for (_, own) in take.plan.own.iter().filter(|(name, _)| copied(name)) {
        needed = needed.saturating_add(mover.stored(own)?);
    }
    free.checked_sub(needed).ok_or_else(|| {
        failure(
            RunErrorKind::NoSpace,
            format!(
                "it would take some {}, and its tier has {} left: reserve space with `checkpoints`, or give it a larger tier",
                Bytes(needed),
                Bytes(free)
            ),
        )
    })
}

/// Bytes of a process that its image must hold: those of no file. Of memory that several share each has its part.
fn in_memory(pid: Pid) -> u64 {
    let read = |name: &str| {
        let path = format!("/proc/{}/{name}", pid.as_raw_nonzero());
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let text = read("status") + &read("smaps_rollup");
    let lines = text.lines().filter_map(|l| l.split_once(':'));
    let kept = lines.filter(|(name, _)| matches!(*name, "RssAnon" | "Pss_Shmem" | "VmSwap"));
    let kib = kept.filter_map(|(_, v)| v.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.fold(0, |sum, kib| sum.saturating_add(kib.saturating_mul(1024)))
}

/// Makes a tree outlive the machine.
fn sync(at: &Path) -> std::io::Result<()> {
    let kind = std::fs::symlink_metadata(at)?.file_type();
    if kind.is_dir() {
        for entry in std::fs::read_dir(at)? {
            sync(&entry?.path())?;
        }
    }
    match kind.is_dir() || kind.is_file() {
        true => File::open(at)?.sync_all(),
        false => Ok(()),
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
