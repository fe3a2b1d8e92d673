//! Small files of the kernel's.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes of a file that are looked at: a number, a unit and a time.
const MAX_BYTES: u64 = 256;
/// Entries of a folder that are looked at: a node with 16 processors has some 100 zones and sensors.
const MAX_ENTRIES: usize = 1024;

/// The content of a file, without white space around it.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_BYTES)
        .read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// The number that a file begins with; the text behind it is its unit.
pub(crate) fn number<T: std::str::FromStr>(path: &Path) -> io::Result<T> {
    let text = text(path)?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first.parse().map_err(|_| {
        let what = format!("`{text}` is no number");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// The entries of a folder, in the order of their names; none of one that is not there.
pub(crate) fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = all.take(MAX_ENTRIES).filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name, entry.path()))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}
