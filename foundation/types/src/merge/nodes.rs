//! The three-way merge of several nodes' changes to one tree.

use super::{Conflict, add_folders_above, collect};
use crate::manifest::{Entry, Manifest, parent};
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The fate of one path.
struct Decision<'a> {
    entry: &'a Entry,
    /// The tree that the entry was taken from; `None` when no node has it and the base does.
    from: Option<usize>,
    /// The nodes whose trees hold it alike.
    holders: Vec<usize>,
}

/// Merges the trees of several nodes of a step, which all started from (their share of) `base`: `given[i]` is
/// what node `i` was given, `trees[i]` what it left. For each path: unchanged everywhere, it stays; changed or
/// new on one node, or alike on several, that is its content; deleted on one and unchanged elsewhere, it is
/// gone. Returns disjoint groups, which together are the merged version, each with the nodes whose trees hold
/// it on disk. Entries of the base that no node was given are a group without nodes. Folders stand in every group that needs
/// them; an empty one stands in one group.
///
/// # Errors
/// A path changed differently on two nodes, or changed on one and deleted on another.
pub fn merge_nodes(
    base: &Manifest,
    given: &[Manifest],
    trees: &[impl Borrow<Manifest>],
) -> Result<Vec<(Vec<usize>, Manifest)>, Conflict> {
    let decisions = decide(base, given, trees)?;
    check_parents(&decisions)?;
    Ok(group(&decisions, |path| {
        let trees = trees
            .iter()
            .map(Borrow::borrow)
            .chain(given)
            .chain(std::iter::once(base));
        trees
            .filter_map(|t| t.find(path))
            .find(|e| e.is_folder())
            .cloned()
    }))
}

/// Walks sorted manifests in step.
struct Cursor<'a> {
    entries: &'a [Entry],
}

impl<'a> Cursor<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        Self {
            entries: &manifest.entries,
        }
    }
    fn path(&self) -> Option<&'a [u8]> {
        self.entries.first().map(|e| &*e.path)
    }
    fn take(&mut self, path: &[u8]) -> Option<&'a Entry> {
        let (first, rest) = self.entries.split_first()?;
        (*first.path == *path).then(|| {
            self.entries = rest;
            first
        })
    }
}

type Decisions<'a> = BTreeMap<&'a [u8], Decision<'a>>;

fn decide<'a>(
    base: &'a Manifest,
    given: &'a [Manifest],
    trees: &'a [impl Borrow<Manifest>],
) -> Result<Decisions<'a>, Conflict> {
    let nodes = trees.len();
    let mut base_at = Cursor::new(base);
    let mut given_at: Vec<_> = (0..nodes)
        .map(|i| Cursor {
            entries: given.get(i).map_or(&[][..], |m| &m.entries),
        })
        .collect();
    let mut tree_at: Vec<_> = trees.iter().map(|t| Cursor::new(t.borrow())).collect();
    let mut decisions = Decisions::new();
    loop {
        let heads = given_at
            .iter()
            .chain(&tree_at)
            .chain(std::iter::once(&base_at));
        let Some(path) = heads.filter_map(Cursor::path).min() else {
            return Ok(decisions);
        };
        let in_base = base_at.take(path);
        let opinions: Vec<_> = (0..nodes)
            .map(|i| (given_at[i].take(path), tree_at[i].take(path)))
            .collect();
        if let Some(decision) = decide_path(path, in_base, &opinions)? {
            decisions.insert(path, decision);
        }
    }
}

/// The fate of a path, from the entries that each node was given and left.
fn decide_path<'a>(
    path: &[u8],
    in_base: Option<&'a Entry>,
    nodes: &[(Option<&'a Entry>, Option<&'a Entry>)],
) -> Result<Option<Decision<'a>>, Conflict> {
    let conflict = |first: usize, second: usize| Conflict {
        path: path.into(),
        first: first.min(second),
        second: first.max(second),
    };
    let mut changed: Option<(usize, &Entry)> = None;
    let mut deleted: Option<(usize, &Entry)> = None;
    let mut unchanged: Option<(usize, &Entry)> = None;
    for (i, (was, is)) in nodes.iter().enumerate() {
        match (was.or(in_base.filter(|_| is.is_some())), is) {
            (None, None) => {}
            (Some(was), None) => deleted = deleted.or(Some((i, was))),
            (Some(was), Some(is)) if was.same_content(is) => {
                unchanged = unchanged.or(Some((i, is)))
            }
            (_, Some(is)) => match changed {
                None => changed = Some((i, is)),
                Some((_, other))
                    if other.same_content(is) || (other.is_folder() && is.is_folder()) => {}
                Some((first, _)) => return Err(conflict(first, i)),
            },
        }
    }
    if let (Some((first, entry)), Some((second, was))) = (changed, deleted)
        && !(entry.is_folder() && was.is_folder())
    {
        return Err(conflict(first, second));
    }
    let nobody = unchanged.is_none() && deleted.is_none();
    let (from, entry) = match (changed, deleted, unchanged) {
        (Some((i, entry)), _, _) => (Some(i), entry),
        (None, Some(_), _) => return Ok(None),
        (None, None, Some((i, entry))) => (Some(i), entry),
        (None, None, None) => match in_base.filter(|_| nobody) {
            Some(entry) => (None, entry),
            None => return Ok(None),
        },
    };
    let holds = |is: &Option<&Entry>| {
        is.is_some_and(|is| is.same_content(entry) || (is.is_folder() && entry.is_folder()))
    };
    let holders = (0..nodes.len()).filter(|&i| holds(&nodes[i].1)).collect();
    Ok(Some(Decision {
        entry,
        from,
        holders,
    }))
}

/// Refuses a file or link where another node needs a folder.
fn check_parents(decisions: &Decisions<'_>) -> Result<(), Conflict> {
    for (path, decision) in decisions {
        let above = std::iter::successors(parent(path), |p| parent(p));
        for (up, above) in above.filter_map(|up| Some((up, decisions.get(up)?))) {
            if above.entry.is_folder() {
                continue;
            }
            let first = above.holders.first().copied().unwrap_or(0);
            let second = decision.holders.first().copied().unwrap_or(0);
            return Err(Conflict {
                path: up.into(),
                first: first.min(second),
                second: first.max(second),
            });
        }
    }
    Ok(())
}

/// The decisions by the nodes that hold them. `folder` finds a folder that was decided away but is needed
/// because another node put something new into it.
fn group(
    decisions: &Decisions<'_>,
    folder: impl Fn(&[u8]) -> Option<Entry>,
) -> Vec<(Vec<usize>, Manifest)> {
    let occupied: std::collections::BTreeSet<&[u8]> =
        decisions.keys().filter_map(|path| parent(path)).collect();
    let mut groups: BTreeMap<&[usize], Vec<(usize, &Entry)>> = BTreeMap::new();
    for (path, decision) in decisions {
        if decision.entry.is_folder() && occupied.contains(path) {
            continue;
        }
        let tree = decision.from.unwrap_or(usize::MAX);
        groups
            .entry(&decision.holders)
            .or_default()
            .push((tree, decision.entry));
    }
    let decided = |path: &[u8]| {
        decisions
            .get(path)
            .map(|d| d.entry.clone())
            .or_else(|| folder(path))
    };
    groups
        .into_iter()
        .map(|(holders, entries)| {
            let mut manifest = collect(entries.into_iter());
            add_folders_above(&mut manifest, decided);
            (holders.to_vec(), manifest)
        })
        .collect()
}
