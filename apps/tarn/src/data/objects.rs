//! `tarn data ... --object`, `objects` and `versions`: the node's object store (docs/guide/objects.md).

use crate::ckpt::printable;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::DataPutArgs;
use crate::print::{self, message, out};
use anyhow::Context;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tarn_objects::{CheckpointError, CheckpointErrorCode, NodeObjectStore, ObjectInfo};
use tarn_types::codes::Exit;
use tarn_types::object::is_object;
use tarn_types::units::Bytes;

/// The requested version, and the node that it is brought from first.
pub(super) struct ObjectSelector<'a> {
    pub(super) key: &'a str,
    pub(super) number: Option<u64>,
    pub(super) from: Option<&'a str>,
}

fn open(store: Option<&Path>) -> CliResult<NodeObjectStore> {
    NodeObjectStore::open(store).map_err(failed)
}

/// A fault of the library, with its exit code.
fn failed(fault: CheckpointError) -> CliError {
    let exit = match fault.code {
        CheckpointErrorCode::Invalid => Exit::Usage,
        CheckpointErrorCode::NotFound => Exit::NotFound,
        CheckpointErrorCode::NoSpace | CheckpointErrorCode::NoMem => Exit::NoSpace,
        CheckpointErrorCode::Busy => Exit::Busy,
        CheckpointErrorCode::Corrupt
        | CheckpointErrorCode::Exists
        | CheckpointErrorCode::Lost
        | CheckpointErrorCode::TimedOut => Exit::WorkflowFailed,
        CheckpointErrorCode::Internal => Exit::Internal,
        CheckpointErrorCode::Io
        | CheckpointErrorCode::Unsupported
        | CheckpointErrorCode::Shape
        | CheckpointErrorCode::Init => Exit::State,
    };
    CliError::new(exit, fault)
}

/// The error for a place in an object store outside.
pub(super) fn outside(at: &Path) -> CliError {
    let text = format!(
        "{} is outside, and the node's own object store takes and gives files: `tarn data copy` brings one from there or there",
        at.display()
    );
    CliError::new(Exit::Usage, text)
}

/// One version, as `--json` has it.
fn json(info: &ObjectInfo, path: Option<&Path>) -> CliResult<()> {
    let line = serde_json::json!({
        "schema": 1, "key": info.key, "number": info.number, "bytes": info.bytes, "about": info.about,
        "damaged": info.damaged, "encrypted": info.encrypted, "path": path,
    });
    print::json(&line)
}

/// Copies a file into a new version: read straight into the store.
pub(super) fn put(globals: &Globals, args: &DataPutArgs) -> CliResult {
    let DataPutArgs {
        path, name: key, ..
    } = args;
    if is_object(path) {
        return Err(outside(path));
    }
    let unreadable = || format!("cannot read {}", path.display());
    // A FIFO without a writer is not waited for.
    let mut file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .with_context(unreadable)
        .exit(Exit::NotFound)?;
    let meta = file
        .metadata()
        .with_context(unreadable)
        .exit(Exit::NotFound)?;
    if !meta.is_file() {
        return Err(CliError::new(
            Exit::Usage,
            format!("{} is no file: an object is made of one", path.display()),
        ));
    }
    let mut store = open(args.object.store.as_deref())?;
    if args.encrypt {
        store = store.encrypting(true);
    }
    let mut draft = store.create(key, meta.len()).map_err(failed)?;
    let read = file.read_exact(draft.bytes());
    read.with_context(unreadable).exit(Exit::NotFound)?;
    if file
        .read(&mut [0])
        .with_context(unreadable)
        .exit(Exit::NotFound)?
        > 0
    {
        return Err(CliError::new(
            Exit::WorkflowFailed,
            format!(
                "{} became longer while it was read: nothing was put",
                path.display()
            ),
        ));
    }
    let info = draft.publish(&args.about).map_err(failed)?;
    if globals.json {
        json(&info, None)?
    } else {
        out!("{key} {}", info.number)?
    }
    Ok(Exit::Success)
}

/// Verifies a version, which may come from another node first, and copies it out or says where its file is.
pub(super) fn get(
    globals: &Globals,
    store: Option<&Path>,
    which: &ObjectSelector<'_>,
    dest: Option<&Path>,
) -> CliResult {
    let store = open(store)?;
    let ObjectSelector { key, number, from } = *which;
    let number = match from {
        Some(node) => Some(store.fetch(key, number, node).map_err(failed)?.number),
        None => number,
    };
    let object = store.map(key, number).map_err(failed)?;
    object.verify().map_err(failed)?;
    if dest.is_none() && object.info().encrypted {
        let text = format!(
            "object {key} is encrypted, and its file of no use to others: name one to copy it to"
        );
        return Err(CliError::new(Exit::Usage, text));
    }
    if let Some(dest) = dest {
        crate::whole::create(dest, |file| file.write_all(object.bytes()))
            .with_context(|| format!("cannot write {}", dest.display()))
            .exit(Exit::WorkflowFailed)?;
    }
    let info = object.info();
    let path = dest.unwrap_or(object.path());
    match globals.json {
        true => json(&info, Some(path))?,
        false if dest.is_some() => message!("{} copied to {}", Bytes(info.bytes), path.display()),
        false => out!("{}", path.display())?,
    }
    Ok(Exit::Success)
}

pub(super) fn list(globals: &Globals, store: Option<&Path>) -> CliResult {
    let store = open(store)?;
    show(globals, &store.list().map_err(failed)?)
}

pub(super) fn versions(globals: &Globals, store: Option<&Path>, key: &str) -> CliResult {
    let store = open(store)?;
    show(globals, &store.versions(key).map_err(failed)?)
}

fn show(globals: &Globals, all: &[ObjectInfo]) -> CliResult {
    if globals.json {
        for info in all {
            json(info, None)?;
        }
        return Ok(Exit::Success);
    }
    if all.is_empty() {
        message!("the store has no objects");
        return Ok(Exit::Success);
    }
    out!("{:<32} {:>7} {:>12}  about", "object", "version", "size")?;
    for info in all {
        let size = if info.damaged {
            "damaged".to_owned()
        } else {
            Bytes(info.bytes).to_string()
        };
        out!(
            "{:<32} {:>7} {size:>12}  {}",
            info.key,
            info.number,
            printable(info.about.as_bytes())
        )?;
    }
    Ok(Exit::Success)
}

pub(super) fn remove(store: Option<&Path>, key: &str, number: Option<u64>) -> CliResult {
    open(store)?.delete(key, number).map_err(failed)?;
    Ok(Exit::Success)
}
