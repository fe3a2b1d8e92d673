//! Dividing trees into parts and putting trees together again. Pure: on manifests, never on files.

mod nodes;

pub use nodes::merge_nodes;

use crate::manifest::{Entry, EntryKind, Manifest, parent};
use crate::part::PartClass;
use crate::pattern::ScatterRule;
use crate::workflow::VersionPartitioning;
use std::collections::BTreeMap;

/// Why a tree cannot be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// A top-level name is not UTF-8, but entries are selected by name.
    #[error(
        "the top-level entry `{0}` is not valid UTF-8, and the steps that read this dataset select its entries by name; rename it"
    )]
    Name(String),
    /// There is no scatter rule.
    #[error(
        "the dataset is scattered but has no `scatter` rule; add one such as `scatter = \"processor{{rank}}\"`"
    )]
    Rule,
}

/// Two trees differ in a path, or one changed an entry that the other removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` differs between tree {first} and tree {second}",
    String::from_utf8_lossy(path)
)]
pub struct Conflict {
    /// The path.
    pub path: Box<[u8]>,
    /// Position of one tree.
    pub first: usize,
    /// Position of the other.
    pub second: usize,
}

/// Divides a tree into parts, sorted by class. `Whole` gives one part, even of an empty tree; `Entries` one for
/// each top-level entry; `Ranks` one for each rank that has entries and one for everything else. The folders
/// above a rank's entries stand in that rank's part and in `Common`. A hard-link group that would cross
/// parts falls apart into separate files.
///
/// # Errors
/// When a name cannot be selected by, or there is no rule to divide by.
pub fn partition(
    tree: &Manifest,
    partition: VersionPartitioning,
    rule: Option<&ScatterRule>,
) -> Result<Vec<(PartClass, Manifest)>, PartitionError> {
    let mut parts: BTreeMap<PartClass, Manifest> = BTreeMap::new();
    match partition {
        VersionPartitioning::Whole => {
            parts.insert(PartClass::Whole, tree.clone());
        }
        VersionPartitioning::Entries => {
            for entry in &tree.entries {
                let class = PartClass::Entry(top_name(&entry.path)?);
                parts.entry(class).or_default().entries.push(entry.clone());
            }
        }
        VersionPartitioning::Ranks => {
            let rule = rule.ok_or(PartitionError::Rule)?;
            for entry in &tree.entries {
                let class = rule
                    .rank(&entry.path)
                    .map_or(PartClass::Common, PartClass::Rank);
                parts.entry(class).or_default().entries.push(entry.clone());
            }
            for (class, part) in &mut parts {
                if matches!(class, PartClass::Rank(_)) {
                    add_folders_above(part, |path| tree.find(path).cloned());
                }
            }
        }
    }
    for part in parts.values_mut() {
        part.renumber_links();
    }
    Ok(parts.into_iter().collect())
}

fn top_name(path: &[u8]) -> Result<String, PartitionError> {
    let name = path.split(|&b| b == b'/').next().unwrap_or(path);
    String::from_utf8(name.to_vec())
        .map_err(|_| PartitionError::Name(String::from_utf8_lossy(name).into_owned()))
}

/// Adds the folders that hold a manifest's entries, taken from `folder`, where they are not listed yet.
fn add_folders_above(part: &mut Manifest, folder: impl Fn(&[u8]) -> Option<Entry>) {
    let mut missing: BTreeMap<Box<[u8]>, Entry> = BTreeMap::new();
    for entry in &part.entries {
        let mut path: &[u8] = &entry.path;
        while let Some(up) = parent(path) {
            if missing.contains_key(up) || part.find(up).is_some() {
                break;
            }
            if let Some(entry) = folder(up) {
                missing.insert(up.into(), entry);
            }
            path = up;
        }
    }
    if !missing.is_empty() {
        part.entries.extend(missing.into_values());
        part.entries.sort_by(|a, b| a.path.cmp(&b.path));
    }
}

/// Unites trees. Files and links of one name must be alike (kind, content, mode, attributes); folders unite, and
/// the first tree's mode, time and attributes win.
///
/// # Errors
/// The first path (in order) in which two trees differ.
pub fn merge(trees: &[&Manifest]) -> Result<Manifest, Conflict> {
    let mut union: BTreeMap<&[u8], (usize, &Entry)> = BTreeMap::new();
    let mut conflict: Option<Conflict> = None;
    for (second, tree) in trees.iter().enumerate() {
        for entry in &tree.entries {
            let Some(&(first, held)) = union.get(&*entry.path) else {
                union.insert(&entry.path, (second, entry));
                continue;
            };
            let alike = (held.is_folder() && entry.is_folder()) || held.same_content(entry);
            if !alike && conflict.as_ref().is_none_or(|c| entry.path < c.path) {
                conflict = Some(Conflict {
                    path: entry.path.clone(),
                    first,
                    second,
                });
            }
        }
    }
    match conflict {
        Some(conflict) => Err(conflict),
        None => Ok(collect(union.into_values())),
    }
}

/// A manifest of entries (sorted by path), each from the tree of that position: hard-link groups of different
/// trees are different groups.
fn collect<'a>(entries: impl Iterator<Item = (usize, &'a Entry)>) -> Manifest {
    let mut groups: BTreeMap<(usize, u32), u32> = BTreeMap::new();
    let mut manifest = Manifest {
        entries: entries
            .map(|(tree, entry)| {
                let mut entry = entry.clone();
                if let EntryKind::File { link_group, .. } = &mut entry.kind
                    && *link_group != 0
                {
                    let next = groups.len() as u32 + 1;
                    *link_group = *groups.entry((tree, *link_group)).or_insert(next);
                }
                entry
            })
            .collect(),
    };
    manifest.renumber_links();
    manifest
}
