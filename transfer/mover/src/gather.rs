//! From what the threads found to manifests: sorted, hard links numbered, everything checked that needs the whole.

use crate::error::{Result, changed, show, show_path};
use crate::job::WorkerOutput;
use crate::links;
use crate::meta::FileStatus;
use crate::tree::{SourceTree, TreeOrigin};
use rustix::fs::{AtFlags, CWD, statat};
use std::collections::HashMap;
use tarn_ports::MoverError;
use tarn_types::event::RunErrorKind;
use tarn_types::manifest::{Entry, EntryKind, Manifest};
use tarn_types::merge::Conflict;

/// A further name of a file: its path and the path that the content has.
pub(crate) type HardLink = (Box<[u8]>, Box<[u8]>);

/// The results of an operation, by tree.
pub(crate) struct Gathered {
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) links: Vec<Vec<HardLink>>,
    /// Entries that were not made because something of that name was there: (tree, path).
    pub(crate) taken: Vec<(u32, Box<[u8]>)>,
    pub(crate) bytes: u64,
    pub(crate) resumed: u64,
}

/// Makes manifests and checks that no folder has changed since it was listed and no link leads out.
pub(crate) fn gather(trees: &[SourceTree<'_>], output: WorkerOutput) -> Result<Gathered> {
    check_folders(trees, &output)?;
    let mut manifests: Vec<Manifest> = trees.iter().map(|_| Manifest::default()).collect();
    let mut links: Vec<Vec<HardLink>> = trees.iter().map(|_| Vec::new()).collect();
    for (tree, entry) in output.found {
        manifests[tree as usize].entries.push(entry);
    }
    for link in output.linked {
        links[link.tree as usize].push((link.path, link.to));
    }
    for (at, (manifest, links)) in manifests.iter_mut().zip(&links).enumerate() {
        manifest
            .entries
            .sort_unstable_by(|a, b| a.path.cmp(&b.path));
        add_links(manifest, links).map_err(|e| e.of_source(at))?;
        manifest.entries.shrink_to_fit();
    }
    for link in &output.undecided {
        links::check_in(&manifests[link.tree as usize], &link.path, &link.to)?;
    }
    Ok(Gathered {
        manifests,
        links,
        taken: output.taken,
        bytes: output.bytes,
        resumed: output.resumed,
    })
}

/// Refuses a folder whose time has changed: entries came or went.
fn check_folders(trees: &[SourceTree<'_>], output: &WorkerOutput) -> Result<()> {
    for folder in &output.folders {
        let (at, path, mtime, real) = (&folder.tree, &folder.path, &folder.mtime, &folder.real);
        let tree = &trees[*at as usize];
        let now = match (real, &tree.origin) {
            (Some(real), _) => statat(CWD, real, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from),
            (None, TreeOrigin::Folder(root)) => {
                root.folder(tree.relative(path)).and_then(FileStatus::of)
            }
            (None, _) => continue,
        };
        match now {
            Ok(status) if status.mtime == *mtime => {}
            Ok(_) => {
                let how = "changed while it was read: entries came or went";
                return Err(changed(&tree.show(path), how).of_source(*at as usize));
            }
            Err(_) => {
                let how = "vanished while it was read";
                return Err(changed(&tree.show(path), how).of_source(*at as usize));
            }
        }
    }
    Ok(())
}

/// Adds the further names of files and numbers their groups.
fn add_links(manifest: &mut Manifest, links: &[HardLink]) -> Result<()> {
    if links.is_empty() {
        return Ok(());
    }
    let mut groups: HashMap<&[u8], u32> = HashMap::new();
    let mut added = Vec::with_capacity(links.len());
    for (path, first) in links {
        let next = groups.len() as u32 + 1;
        let group = *groups.entry(first).or_insert(next);
        let at = manifest.entries.binary_search_by(|e| e.path.cmp(first));
        let Some(entry) = at.ok().and_then(|at| manifest.entries.get_mut(at)) else {
            return Err(changed(&show(first), "vanished while it was read"));
        };
        if let EntryKind::File { link_group, .. } = &mut entry.kind {
            *link_group = group;
        }
        added.push(Entry {
            path: path.clone(),
            ..entry.clone()
        });
    }
    manifest.entries.append(&mut added);
    manifest
        .entries
        .sort_unstable_by(|a, b| a.path.cmp(&b.path));
    manifest.renumber_links();
    Ok(())
}

/// A conflict of merged sources, with their names.
pub(crate) fn conflict(conflict: &Conflict, name: impl Fn(usize) -> String) -> MoverError {
    MoverError::new(
        RunErrorKind::Conflict,
        format!(
            "`{}` differs between `{}` and `{}`, which are gathered into one tree; make the steps write different names, or the same content",
            show(&conflict.path),
            name(conflict.first),
            name(conflict.second)
        ),
    )
}

/// How strictly a tree is compared with its manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Against {
    /// A source: a different file may have been changed by somebody.
    Source,
    /// A replica, or a fresh copy: nobody may have changed it.
    Replica,
}

/// Compares the found entries with those that a tree must have. Times are compared only if there is no hash.
pub(crate) fn compare(
    tree: &SourceTree<'_>,
    found: &Manifest,
    expected: &Manifest,
    against: Against,
) -> Result<()> {
    let mut found_at = found.entries.iter().peekable();
    for want in expected.entries.iter().filter(|e| tree.wants(&e.path)) {
        match found_at.peek() {
            Some(is) if is.path == want.path => {
                differs(is, want).map_or(Ok(()), |(how, kind)| {
                    Err(mismatch(tree, &want.path, how, kind, against))
                })?;
                found_at.next();
            }
            Some(is) if is.path < want.path => return Err(extra(tree, is, against)),
            _ => {
                return Err(mismatch(
                    tree,
                    &want.path,
                    "is missing",
                    Blame::Changed,
                    against,
                ));
            }
        }
    }
    found_at
        .next()
        .map_or(Ok(()), |is| Err(extra(tree, is, against)))
}

fn extra(tree: &SourceTree<'_>, is: &Entry, against: Against) -> MoverError {
    mismatch(
        tree,
        &is.path,
        "is not in the manifest",
        Blame::Changed,
        against,
    )
}

/// The likely cause of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// Somebody has changed it.
    Changed,
    /// Nobody has written it (by its times), but its bytes differ.
    Stored,
}

fn differs(is: &Entry, want: &Entry) -> Option<(&'static str, Blame)> {
    match (&is.kind, &want.kind) {
        (EntryKind::Directory, EntryKind::Directory) => {}
        (EntryKind::Symlink(a), EntryKind::Symlink(b)) if a == b => return None,
        (EntryKind::Symlink(_), EntryKind::Symlink(_)) => {
            return Some(("has another target", Blame::Changed));
        }
        (
            EntryKind::File { size, hash, .. },
            EntryKind::File {
                size: want_size,
                hash: want_hash,
                ..
            },
        ) => {
            if size != want_size {
                return Some(("has another size than in its manifest", Blame::Changed));
            }
            match (hash, want_hash) {
                (Some(a), Some(b)) if a == b => {}
                (Some(_), Some(_)) if is.mtime == want.mtime => {
                    return Some(("does not match its hash", Blame::Stored));
                }
                (Some(_), Some(_)) => {
                    return Some(("has other content than in its manifest", Blame::Changed));
                }
                _ if is.mtime != want.mtime => {
                    return Some(("was changed since it was listed", Blame::Changed));
                }
                _ => {}
            }
        }
        _ => return Some(("is of another kind than in its manifest", Blame::Changed)),
    }
    if is.mode != want.mode {
        return Some(("has another mode than in its manifest", Blame::Changed));
    }
    (is.xattrs != want.xattrs).then_some((
        "has other extended attributes than in its manifest",
        Blame::Changed,
    ))
}

fn mismatch(
    tree: &SourceTree<'_>,
    path: &[u8],
    how: &str,
    blame: Blame,
    against: Against,
) -> MoverError {
    match (against, blame) {
        (Against::Source, Blame::Changed) => changed(&tree.show(path), how),
        _ => crate::error::corrupt(&tree.show(path), how),
    }
}

/// The names of a job's sources, for messages.
pub(crate) fn name_of<'a>(trees: &'a [SourceTree<'_>]) -> impl Fn(usize) -> String + 'a {
    |at| {
        trees
            .get(at)
            .map_or_else(|| at.to_string(), |t| show_path(&t.path))
    }
}
