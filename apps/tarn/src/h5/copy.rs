//! `tarn h5 export` and `import`.

use super::store::{Hdf5FileReader, chunk};
use super::writer::Hdf5FileWriter;
use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::print::{self, out};
use crate::whole;
use anyhow::Context;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

/// The signature of an HDF5 file: at its beginning, or behind a user block of 512 bytes, or 1,024, and so on.
const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Copies a file out of its partitions.
///
/// # Errors
/// When it is written to, or the ordinary file is there already or cannot be written.
pub(super) fn export(globals: &Globals, partitions: &[PathBuf], file: &Path) -> CliResult {
    let mut reader = Hdf5FileReader::open(partitions).map_err(|why| with_hint(why, partitions))?;
    let failed = || format!("cannot write {}", file.display());
    let mut why = None;
    let written = whole::create(file, |to| {
        let mut at = 0;
        while at < reader.size {
            let bytes = reader.read(at).map_err(|e| {
                why = Some(e);
                std::io::Error::from(ErrorKind::Other)
            })?;
            to.write_all(&bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    });
    match (written, why) {
        (Ok(()), _) => {}
        (Err(_), Some(why)) => return Err(why.error).with_context(failed).exit(Exit::State),
        (Err(e), None) if e.kind() == ErrorKind::AlreadyExists => {
            let text = format!("{} is there already: take another name", file.display());
            return Err(CliError::new(Exit::Usage, text));
        }
        (Err(e), None) => return Err(e).with_context(failed).exit(Exit::State),
    }
    print_copied(globals, file, reader.size)
}

/// If there is no such file, the hint names the command that lists files.
fn with_hint(why: CliError, partitions: &[PathBuf]) -> CliError {
    let folder = partitions.first().and_then(|first| first.parent());
    match folder.filter(|folder| why.exit == Exit::NotFound && !folder.as_os_str().is_empty()) {
        Some(folder) => CliError::new(
            Exit::NotFound,
            format!(
                "{why}: `tarn h5 ls {}` shows the files that are there",
                folder.display()
            ),
        ),
        None => why,
    }
}

/// Copies an ordinary file into partitions of its own.
///
/// # Errors
/// When it is none of HDF5, the partitions are there already, or there is no space.
pub(super) fn import(
    globals: &Globals,
    file: &Path,
    partitions: &[PathBuf],
    block: u64,
) -> CliResult {
    let failed = || format!("cannot read {}", file.display());
    let mut from = File::open(file).with_context(failed).exit(Exit::NotFound)?;
    let size = from
        .metadata()
        .with_context(failed)
        .exit(Exit::State)?
        .len();
    if !is_hdf5(&from, size) {
        let text = format!("{} is no HDF5 file", file.display());
        return Err(CliError::new(Exit::Usage, text));
    }
    let mut writer = Hdf5FileWriter::create(partitions, block, size)?;
    let mut left = size;
    let mut bytes = vec![0; chunk()];
    while left > 0 {
        let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = &mut bytes[..length];
        from.read_exact(bytes)
            .with_context(failed)
            .exit(Exit::State)?;
        writer.write(bytes)?;
        left -= length as u64;
    }
    writer.finish()?;
    let first = partitions.first().map_or(file, PathBuf::as_path);
    print_copied(globals, first, size)
}

fn is_hdf5(file: &File, size: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let places = std::iter::successors(Some(512_u64), |at| at.checked_mul(2));
    let places = std::iter::once(0).chain(places.take_while(|at| *at < size));
    let mut found = [0; SIGNATURE.len()];
    places
        .into_iter()
        .any(|at| file.read_exact_at(&mut found, at).is_ok() && found == SIGNATURE)
}

fn print_copied(globals: &Globals, to: &Path, size: u64) -> CliResult {
    if globals.json {
        print::json(&serde_json::json!({"schema": 1, "to": to, "bytes": size}))?
    } else {
        out!("{}: {}", to.display(), Bytes(size))?
    }
    Ok(Exit::Success)
}
