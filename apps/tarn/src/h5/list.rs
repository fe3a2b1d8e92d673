//! `tarn h5 ls` and `wait`.

use super::exec::is_path;
use super::store::{
    Hdf5CopyBuffer, Hdf5PartitionHeader, Hdf5PartitionIo, allocate_page_buffer, changes,
};
use crate::error::{CliError, CliResult};
use crate::globals::Globals;
use crate::partition::refused;
use crate::print::{self, out};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_partitions::{Code, Partition};
use tarn_types::codes::Exit;
use tarn_types::units::Bytes;

/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_micros(200);

/// Lists the files of a folder.
///
/// # Errors
/// When it cannot be read.
pub(super) fn ls(globals: &Globals, folder: &Path) -> CliResult {
    let (mut files, buffer) = (Vec::new(), allocate_page_buffer());
    for below in folders(folder) {
        let inner = folder.join(&below);
        let found = match Partition::list(&inner) {
            // A folder that disappears meanwhile, or that is another user's, is not listed.
            Err(_) if !below.as_os_str().is_empty() => continue,
            found => found.map_err(refused)?,
        };
        for mut info in found {
            let opened = Hdf5PartitionIo::open(&[inner.join(&info.name)], 0, false, buffer);
            let Ok(page) = opened.and_then(|mut store| store.page()) else {
                continue;
            };
            if let Some(header) = Hdf5PartitionHeader::of(&page) {
                info.name = below.join(&info.name).to_string_lossy().into_owned();
                files.push((info, header, changes(&page)));
            }
        }
    }
    if globals.json {
        let all: Vec<_> = files
            .iter()
            .map(|(info, header, changes)| {
                json!({
                    "name": info.name, "bytes": header.eof, "partition_bytes": info.size, "changes": changes,
                    "partitions": header.count, "index": header.index, "block": header.block,
                })
            })
            .collect();
        print::json(&json!({"schema": 1, "files": all}))?;
        return Ok(Exit::Success);
    }
    for (info, header, changes) in &files {
        let size = Bytes(info.size);
        match (header.count, header.index) {
            (1, _) => out!(
                "{}  {} of {size}  changed {}",
                info.name,
                Bytes(header.eof),
                times(*changes)
            )?,
            (count, 0) => out!(
                "{}  {} over {count} partitions, 1 of {count}, {size}  changed {}",
                info.name,
                Bytes(header.eof),
                times(*changes)
            )?,
            (count, index) => out!("{}  {} of {count}, {size}", info.name, index + 1)?,
        }
    }
    Ok(Exit::Success)
}

fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

/// The folder itself, as an empty path, and those below it, in the order of their names. Of a dataspace only tarnd knows them.
fn folders(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![PathBuf::new()];
    let mut next = 0;
    while is_path(top) && next < all.len() {
        let here = top.join(&all[next]);
        let entries = std::fs::read_dir(here).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut inner: Vec<_> = inner
            .map(|entry| all[next].join(entry.file_name()))
            .collect();
        inner.sort();
        all.extend(inner);
        next += 1;
    }
    all
}

/// Waits for a change.
///
/// # Errors
/// When there is none in time.
pub(super) fn wait(
    globals: &Globals,
    partition: &PathBuf,
    newer_than: Option<u64>,
    timeout: Duration,
) -> CliResult {
    let until = Instant::now() + timeout;
    let (mut seen, mut store, buffer) = (newer_than, None, allocate_page_buffer());
    loop {
        if store.is_none() {
            store = there(partition, buffer)?;
        }
        let now = match &mut store {
            Some(store) => Some(changes(&store.page().map_err(refused)?)),
            None => None,
        };
        let before = *seen.get_or_insert(now.unwrap_or(0));
        match now {
            Some(now) if now > before => {
                if globals.json {
                    print::json(&json!({"schema": 1, "changes": now}))?
                } else {
                    out!("{now}")?
                }
                return Ok(Exit::Success);
            }
            _ if Instant::now() >= until => {
                let changed = match before {
                    0 => String::new(),
                    1 => " again after its first change".to_owned(),
                    n => format!(" again after {n} changes"),
                };
                let text = format!(
                    "{} was not changed{changed} in {timeout:?}: see what its writer does, or give more --timeout",
                    partition.display()
                );
                return Err(CliError::new(Exit::State, text));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// The partition, if it is there.
fn there(partition: &PathBuf, buffer: Hdf5CopyBuffer) -> CliResult<Option<Hdf5PartitionIo>> {
    match Hdf5PartitionIo::open(std::slice::from_ref(partition), 0, false, buffer) {
        Ok(store) => Ok(Some(store)),
        Err(why) if why.code == Code::NotFound => Ok(None),
        Err(why) => Err(refused(why)),
    }
}
