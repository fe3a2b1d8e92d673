//! The bytes that count of a file or folder which a step names or watches: they show whether it has changed.

use std::path::Path;
use tarn_types::hash::Hash;

/// Bytes of a script that are read to see whether it has changed: more is no script that somebody wrote.
const MAX_SCRIPT_BYTES: u64 = 16 << 20;

/// Files of a folder that a step watches: one with more is a dataset.
const MAX_WATCHED: usize = 10_000;

/// The bytes of a script, if it is a regular file. A large one (data that a command names, or a program) is represented
/// by its size and time.
pub(crate) fn read_script(path: &Path) -> Option<Vec<u8>> {
    let meta = std::fs::metadata(path)
        .ok()
        .filter(std::fs::Metadata::is_file)?;
    if meta.len() <= MAX_SCRIPT_BYTES {
        return std::fs::read(path).ok();
    }
    let written = meta
        .modified()
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    Some(format!("{} bytes of {written:?}", meta.len()).into_bytes())
}

/// The bytes of a file, or the identity of a folder's content: the names and contents of its files.
pub(crate) fn read_watched(path: &Path) -> Option<Vec<u8>> {
    if !path.is_dir() {
        return read_script(path);
    }
    let mut all = Vec::new();
    let mut left = vec![path.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).ok()? {
            let entry = entry.ok()?;
            if entry.file_type().ok()?.is_dir() {
                left.push(entry.path())
            } else {
                files.push(entry.path())
            }
        }
        if files.len() > MAX_WATCHED {
            return None;
        }
    }
    files.sort();
    for file in files {
        let name = file.strip_prefix(path).unwrap_or(&file);
        all.extend_from_slice(name.as_os_str().as_encoded_bytes());
        // A link that leads nowhere, a socket: its name counts.
        let hash = read_script(&file).map_or(Hash(0), |bytes| Hash::of(&bytes));
        all.push(0);
        all.extend_from_slice(&hash.0.to_le_bytes());
    }
    Some(all)
}
