//! `tarn data copy`: a tree or a file, with this process's own rights. docs/guide/on-a-site.md, "Stores that only a job's own steps reach";
//! docs/guide/object-stores.md where one of the places is in one.

mod outside;

use crate::error::{CliError, CliResult, ExitWith};
use crate::mover::trees;
use crate::print::message;
use anyhow::Context;
use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, rename, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tarn_ports::{Control, CopyJob, CopyReport, CopySource, Mover};
use tarn_types::codes::Exit;
use tarn_types::object::is_object;
use tarn_types::part::Verify;
use tarn_types::units::Bytes;

/// A single file's name while it is copied.
const SINGLE: &str = "file";

fn usage(text: String) -> CliError {
    CliError::new(Exit::Usage, text)
}

/// The metadata of a path, links not followed; none if nothing is there.
fn read_metadata(path: &Path) -> CliResult<Option<Metadata>> {
    match path.symlink_metadata() {
        Ok(about) => Ok(Some(about)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(usage(format!("{}: {e}", path.display()))),
    }
}

/// Beside a path, on the same file system.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The path of the copy: in an existing folder, under the source's own name.
fn destination(from: &Path, to: &Path, is_folder: bool) -> CliResult<PathBuf> {
    if !to.is_dir() {
        let ends_in_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
        if ends_in_slash && !is_folder {
            let text = format!(
                "there is no folder {}: make it first, or leave the `/` out if the copy is to be called so",
                to.display()
            );
            return Err(usage(text));
        }
        return Ok(plain(to));
    }
    let name = from.file_name().map(OsStr::to_owned).ok_or_else(|| {
        let text = format!("{} has no name: give the copy a name", from.display());
        usage(text)
    })?;
    Ok(to.join(name))
}

/// Without a `/` at the end: names are put together from it.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

pub(super) fn copy(from: &Path, to: &Path, replace: bool) -> CliResult {
    if is_object(from) || is_object(to) {
        return outside::copy(from, to, replace);
    }
    let from = std::path::absolute(from).exit(Exit::Usage)?;
    let source =
        read_metadata(&from)?.ok_or_else(|| usage(format!("{} is not there", from.display())))?;
    let to = std::path::absolute(to).exit(Exit::Usage)?;
    let to = destination(&from, &to, source.is_dir())?;
    if to.starts_with(&from) || from.starts_with(&to) {
        let text = format!(
            "one of {} and {} contains the other",
            from.display(),
            to.display()
        );
        return Err(usage(text));
    }
    appear(&from, source.is_dir(), &to, replace)
}

/// Copies a file or a folder, of this machine or of an object store, to a place where nothing is, or what is exchanged.
fn appear(from: &Path, is_folder: bool, to: &Path, replace: bool) -> CliResult {
    match read_metadata(to)? {
        Some(_) if !replace => {
            let text = format!(
                "{} exists already: choose another place, or exchange it by `--replace`",
                to.display()
            );
            return Err(usage(text));
        }
        Some(there) if there.is_dir() != is_folder => {
            let text = format!(
                "only one of {} and {} is a folder: they are not exchanged",
                from.display(),
                to.display()
            );
            return Err(usage(text));
        }
        _ => {}
    }
    let report = if is_folder {
        tree(from, to, replace, None)?
    } else {
        file(from, to, replace)?
    };
    copied(&report, to);
    Ok(Exit::Success)
}

/// Says what was copied.
fn copied(report: &CopyReport, to: &Path) {
    for lost in &report.lost {
        message!("warning: {lost}");
    }
    let earlier = match report.resumed {
        0 => String::new(),
        bytes => format!(" ({} of it by an earlier call)", Bytes(bytes)),
    };
    let bytes = Bytes(report.bytes + report.resumed);
    message!("{bytes} copied to {}{earlier}", to.display());
}

fn tree(from: &Path, to: &Path, replace: bool, name: Option<&str>) -> CliResult<CopyReport> {
    let job = CopyJob {
        sources: vec![CopySource {
            as_entry: name.map(str::to_owned),
            ..CopySource::of(from)
        }],
        dest: to.to_path_buf(),
        staging: beside(to, ".tarn-incoming"),
        replace,
        verify: Verify::Readback,
        sync: true,
        rate: 0,
        latency: 0,
        arrivals: None,
        seal: None,
    };
    let copied = trees().copy(&job, &Control::default());
    copied.exit(Exit::WorkflowFailed)
}

/// A file, or a link, in a folder of its own until it is whole.
fn file(from: &Path, to: &Path, replace: bool) -> CliResult<CopyReport> {
    let whole = beside(to, ".tarn-whole");
    let mover = trees();
    mover.remove(&whole).exit(Exit::WorkflowFailed)?;
    let report = tree(from, &whole, false, Some(SINGLE))?;
    let made = whole.join(SINGLE);
    let renamed = if replace {
        rename(&made, to)
    } else {
        match renameat_with(CWD, &made, CWD, to, RenameFlags::NOREPLACE) {
            // NFS has no such rename; linkat never replaces an existing name either.
            Err(Errno::INVAL) => linkat(CWD, &made, CWD, to, AtFlags::empty()),
            renamed => renamed,
        }
    };
    let removed = mover.remove(&whole);
    renamed.map_err(|e| {
        let text = format!("the copy cannot get the name {}: {e}", to.display());
        CliError::new(Exit::WorkflowFailed, text)
    })?;
    // The name is as durable as the content.
    let above = to.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(above)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("cannot sync the folder {}", above.display()))
        .exit(Exit::WorkflowFailed)?;
    removed.exit(Exit::WorkflowFailed)?;
    Ok(report)
}
