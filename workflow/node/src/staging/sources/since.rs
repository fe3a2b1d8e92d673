//! Finds what has changed in a source since a run listed it.

use super::{SourceLook, fill, is_tree, on_disk, resolve, stamps};
use crate::storage::source_memory;
use crate::storage::store::{hash_of, read_manifest};
use std::collections::BTreeMap;
use std::path::Path;
use tarn_ports::{Control, Mover};
use tarn_types::event::RunError;
use tarn_types::layout::StateDir;
use tarn_types::manifest::{Entry, EntryKind};
use tarn_types::object::is_object;
use tarn_types::part::StoreKey;
use tarn_types::workflow::Dataset;

/// Looks at a source of which a run has listed parts under these keys. A file that only looks other is read.
///
/// # Errors
/// When the source cannot be listed, or what the run has noted of it cannot be read.
pub fn look_at_source_since(
    state: &StateDir,
    workspace: &str,
    dataset: &Dataset,
    listed: &[StoreKey],
    mover: &dyn Mover,
) -> Result<SourceLook, RunError> {
    let root = resolve(dataset.source.as_deref().unwrap_or(Path::new("")));
    let mut tree = mover.list_source(&root, &Control::default())?;
    let stamps = stamps(&root, &tree);
    let known = source_memory::read(&state.sources(workspace).join(&dataset.name), &root);
    fill(&mut tree, &stamps, &known);
    let mut before: BTreeMap<Box<[u8]>, Entry> = BTreeMap::new();
    for key in listed {
        let manifest = read_manifest(&state.manifest(workspace, key))?;
        let files = manifest.entries.into_iter().filter(is_file);
        before.extend(files.map(|e| (e.path.clone(), e)));
    }
    let name = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut look = SourceLook::default();
    for entry in tree.entries.iter().filter(|e| is_file(e)) {
        match before.remove(&entry.path) {
            None => look.new.push(name(&entry.path)),
            Some(once) if is_same(entry, &once, &root, mover) => {}
            Some(_) => look.changed.push(name(&entry.path)),
        }
    }
    look.gone = before.keys().map(|path| name(path)).collect();
    look.tree = tree;
    Ok(look)
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::File { .. })
}

/// Whether a file has the content that it had.
fn is_same(entry: &Entry, once: &Entry, root: &Path, mover: &dyn Mover) -> bool {
    let sizes = (&entry.kind, &once.kind);
    let (EntryKind::File { size: a, .. }, EntryKind::File { size: b, .. }) = sizes else {
        return false;
    };
    match (hash_of(entry), hash_of(once)) {
        _ if a != b => false,
        (Some(now), Some(before)) => now == before,
        // It is not the file that was read, whatever its size and time.
        (None, Some(before)) => {
            let file = on_disk(root, is_tree(root), &entry.path);
            let file = match is_object(root) {
                true => file,
                false => std::fs::canonicalize(&file).unwrap_or(file),
            };
            let found = mover.digest(&file, &Control::default()).ok();
            let found = found.and_then(|m| m.entries.into_iter().next());
            found.as_ref().and_then(hash_of) == Some(before)
        }
        // Never read so far: its mode shows nothing of its content.
        (_, None) => entry.mtime == once.mtime,
    }
}
