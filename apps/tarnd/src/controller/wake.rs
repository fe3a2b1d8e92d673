//! A notification of Slurm's scripts that a job with data lines is being submitted: they write a byte into a file, and never wait.
//! docs/internals/site.md, "The order of jobs".

use super::reader::SlurmReader;
use anyhow::Context;
use rustix::fs::inotify;
use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file, beside the controller's socket.
const NAME: &str = "submitted";
/// Bytes of events that are taken at a time.
const MAX_EVENTS: usize = 4096;

/// Makes the file for Slurm's user, and asks for a reading of Slurm's queue at each change of it.
pub(super) fn serve(socket: &Path, slurm: u32, reader: SlurmReader) {
    let path = socket.with_file_name(NAME);
    let watched = make(&path, slurm).and_then(|()| watch(&path));
    let started = watched.and_then(|watch| {
        let thread = std::thread::Builder::new().name("submitted".into());
        let run = move || read_on(&watch, &reader);
        thread.spawn(run).context("no thread")
    });
    if let Err(e) = started {
        tracing::warn!(
            "jobs are known when Slurm asks about them, not when they are submitted: {e:#}"
        );
    }
}

/// The folder is root's: nobody else has a file of this name there.
fn make(path: &PathBuf, slurm: u32) -> anyhow::Result<()> {
    let about = || format!("cannot make {}", path.display());
    let open = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path);
    let file: File = open.with_context(about)?;
    std::os::unix::fs::fchown(&file, Some(slurm), None).with_context(about)
}

fn watch(path: &PathBuf) -> anyhow::Result<rustix::fd::OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).context("inotify")?;
    inotify::add_watch(&watch, path, inotify::WatchFlags::MODIFY)
        .with_context(|| format!("cannot watch {}", path.display()))?;
    Ok(watch)
}

fn read_on(watch: &rustix::fd::OwnedFd, reader: &SlurmReader) {
    let mut buffer = [MaybeUninit::uninit(); MAX_EVENTS];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        match events.next() {
            Ok(_) => reader.request(),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::warn!("submissions are not noticed any more: {e}");
                return;
            }
        }
    }
}
