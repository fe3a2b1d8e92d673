//! Cached data: replicas that no step of a run reads any more, and that stay on their tier while nobody needs the space.
//!
//! Each such replica has a mark beside it, an empty file `cached/<bytes>.<key>` in its node's folder. A replica with a mark may
//! be removed: by its run while that lives, after that by any run that needs space on the tier, under the page's lock. The next
//! run of its workflow first takes all marks away: from then on nobody else removes the replicas that it finds.
//!
//! Bytes of marks are from their names, those of ended runs from the page: whatever somebody wrote, so that sums of them saturate.

use super::page::{TierClaims, lock};
use super::{Ledgers, Mine, TierAccount};
use crate::storage::stage;
use crate::storage::store::warn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tarn_ports::Mover;
use tarn_types::id::TierRef;
use tarn_types::layout::TierDir;
use tarn_types::part::{PartRef, StoreKey};

/// The cached data of this run.
#[derive(Debug, Default)]
pub(super) struct CachedParts {
    /// Replicas that may be removed, the oldest first.
    candidates: VecDeque<(TierRef, PartRef, StoreKey)>,
    /// The marks of replicas that have not gone yet, with their bytes.
    marks: BTreeMap<(TierRef, StoreKey), (PathBuf, u64)>,
    /// Replicas that were removed without the engine's order.
    dropped: BTreeSet<(TierRef, StoreKey)>,
}

/// A mark on a tier.
struct CacheMark {
    path: PathBuf,
    part: PathBuf,
    bytes: u64,
    since: SystemTime,
}

impl CacheMark {
    fn of(path: PathBuf, dir: &TierDir) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (bytes, key) = name.split_once('.')?;
        Some(Self {
            bytes: bytes.parse().ok()?,
            part: dir.part(&StoreKey(key.to_owned())),
            since: path.symlink_metadata().ok()?.modified().ok()?,
            path,
        })
    }
}

/// The marks of a workspace on the tier at `root`.
fn marks(root: &Path, workspace: &str) -> Vec<CacheMark> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| e.path()).collect::<Vec<_>>()
    };
    let nodes = entries(&root.join(workspace)).into_iter();
    let nodes = nodes.filter(|n| n.file_name().is_some_and(|n| n != stage::NAME));
    let of_node = |node: PathBuf| {
        let dir = TierDir(node);
        let all = entries(&dir.cached()).into_iter();
        all.filter_map(|path| CacheMark::of(path, &dir))
            .collect::<Vec<_>>()
    };
    nodes.flat_map(of_node).collect()
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Takes the marks away of what is not there any more. Bytes that are still marked.
pub(super) fn prune(root: &Path, workspace: &str) -> u64 {
    let mut bytes = 0u64;
    for mark in marks(root, workspace) {
        if mark.part.symlink_metadata().is_ok() {
            bytes = bytes.saturating_add(mark.bytes);
        } else {
            // One that stays is looked at again by whoever comes next.
            let _ = remove_file(&mark.path);
        }
    }
    bytes
}

/// Takes the marks of a workspace away: nobody but its own runs removes what is there any more. Only for who holds the workspace's
/// run lock.
pub(super) fn uncache(root: &Path, workspace: &str) -> io::Result<()> {
    uncache_those(root, workspace, |_| true)
}

/// Takes the marks of replicas of a workspace away, by their folders: nobody removes them for space any more. Only for who holds the
/// workspace's run lock, or a share of it.
///
/// # Errors
/// When a mark cannot be removed, or the ledger cannot be changed.
pub fn uncache_replicas(
    root: &Path,
    workspace: &str,
    replicas: &BTreeSet<PathBuf>,
) -> io::Result<()> {
    let names: BTreeSet<_> = replicas.iter().filter_map(|r| r.file_name()).collect();
    uncache_those(root, workspace, |mark| {
        mark.part.file_name().is_some_and(|n| names.contains(n))
    })
}

fn uncache_those(
    root: &Path,
    workspace: &str,
    is_meant: impl Fn(&CacheMark) -> bool,
) -> io::Result<()> {
    if !marks(root, workspace).iter().any(&is_meant) {
        return Ok(());
    }
    let _lock = lock(root)?;
    let mut page = TierClaims::read(root)?;
    let mut left = 0u64;
    for mark in marks(root, workspace) {
        match is_meant(&mark) {
            true => remove_file(&mark.path)?,
            false => left = left.saturating_add(mark.bytes),
        }
    }
    for claim in page.entries.iter_mut().filter(|c| c.workspace == workspace) {
        claim.cached = claim.cached.min(left);
    }
    page.write(root)
}

/// Removes what ended runs of other workspaces have cached on the tier at `root`, the oldest first, until so many bytes of it
/// have gone.
fn reclaim(root: &Path, own: &str, bytes: u64, mover: &dyn Mover) -> io::Result<()> {
    // Held until all is removed: a run of that workspace that begins meanwhile finds what is there then.
    let _lock = lock(root)?;
    let mut page = TierClaims::read(root)?;
    let ended = |c: &&super::WorkspaceClaim| c.workspace != own && c.cached > 0 && !c.alive();
    let mut all: Vec<(String, CacheMark)> = Vec::new();
    for claim in page.entries.iter().filter(ended) {
        let marks = marks(root, &claim.workspace).into_iter();
        all.extend(marks.map(|m| (claim.workspace.clone(), m)));
    }
    all.sort_by(|(_, a), (_, b)| (a.since, &a.path).cmp(&(b.since, &b.path)));
    let mut left = bytes;
    let mut freed: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (workspace, mark) in all {
        let (gone, marked) = freed.entry(workspace).or_default();
        let there = mark.part.symlink_metadata().is_ok();
        if left == 0 && there {
            *marked = marked.saturating_add(mark.bytes);
            continue;
        }
        if let Err(e) = mover.remove(&mark.part) {
            warn(&format!(
                "the cached data of another run cannot be removed: {e}"
            ));
            continue;
        }
        remove_file(&mark.path)?;
        if there {
            left = left.saturating_sub(mark.bytes);
            *gone = gone.saturating_add(mark.bytes);
        }
    }
    for claim in &mut page.entries {
        if claim.workspace == own || claim.cached == 0 || claim.alive() {
            continue;
        }
        // Nobody may remove a replica without a mark, whatever the claim says.
        let (gone, marked) = freed.get(&claim.workspace).copied().unwrap_or_default();
        claim.used = claim.used.saturating_sub(gone);
        claim.cached = marked;
    }
    page.entries
        .retain(|c| c.alive() || c.used > 0 || c.reserved > 0);
    page.write(root)
}

impl TierAccount {
    /// Bytes by which `bytes` more would exceed the tier.
    fn lack(&self, bytes: u64) -> u64 {
        let lack = |m: &Mine| {
            let all = m.space.total().saturating_add(m.others);
            all.saturating_add(bytes).saturating_sub(m.limit)
        };
        self.state.lock().map_or(0, |m| lack(&m))
    }
}

impl Ledgers {
    fn with_cached<T: Default>(&self, f: impl FnOnce(&mut CachedParts) -> T) -> T {
        self.cached
            .lock()
            .map_or_else(|_| T::default(), |mut c| f(&mut c))
    }

    /// From now on a replica of this run, in this folder, is cached. All that is cached on its tier may take `share` bytes:
    /// cached data of others goes first. Whether it could be marked.
    pub(crate) fn cache(
        &self,
        (tier_ref, part, key): (TierRef, PartRef, &StoreKey),
        dir: &TierDir,
        share: u64,
        mover: &dyn Mover,
    ) -> bool {
        let id = (tier_ref, key.clone());
        let stored = self.replicas.lock().ok().and_then(|r| r.get(&id).copied());
        let (Some(&(at, _)), Some(stored)) = (self.tier_refs.get(&tier_ref), stored) else {
            return false;
        };
        let mark = dir.cached().join(format!("{stored}.{}", key.0));
        // A mark of an earlier size is none any more.
        let before = self.unmark(&id);
        let made = std::fs::create_dir_all(dir.cached()).and_then(|()| std::fs::write(&mark, b""));
        let account = &self.accounts[at];
        if made.is_err() {
            account.adjust(|m| m.uncache(before));
            self.with_cached(|c| c.dropped.insert(id));
            return false;
        }
        let mut surplus = 0;
        let add = |m: &mut Mine| {
            m.uncache(before);
            m.claim.cached += stored;
            let all = m.claim.cached.saturating_add(m.others_cached);
            surplus = all.saturating_sub(share).min(m.others_cached);
        };
        // As for reservations: the next change writes it.
        let _ = account.update(add, |_| true);
        // Only now may another thread remove it, which takes the bytes off again.
        self.with_cached(|c| {
            c.marks.insert(id, (mark, stored));
            c.candidates.push_back((tier_ref, part, key.clone()));
        });
        if surplus > 0 {
            self.reclaim(account, surplus, mover);
        }
        true
    }

    fn reclaim(&self, account: &TierAccount, bytes: u64, mover: &dyn Mover) {
        let own = account.state.lock().map(|m| m.claim.workspace.clone());
        let Ok(own) = own else { return };
        let reclaimed = reclaim(&account.root, &own, bytes, mover);
        if let Err(e) = reclaimed.and_then(|()| account.refresh().map(drop)) {
            let root = account.root.display();
            warn(&format!(
                "cached data on the tier at {root} cannot be removed: {e}"
            ));
        }
    }

    /// The engine has a replica removed. False if that has been done already.
    pub(crate) fn evicts(&self, tier_ref: TierRef, key: &StoreKey) -> bool {
        let id = (tier_ref, key.clone());
        self.with_cached(|c| {
            c.candidates.retain(|(s, _, k)| (s, k) != (&id.0, &id.1));
            Some(!c.dropped.remove(&id))
        })
        .unwrap_or(true)
    }

    /// A transfer reads a replica: if it is cached, it stays while the run lives.
    pub(crate) fn hold(&self, tier_ref: TierRef, key: &StoreKey) {
        self.with_cached(|c| c.candidates.retain(|(s, _, k)| (*s, k) != (tier_ref, key)));
    }

    /// A replica has gone, and its mark goes. Bytes that were cached.
    pub(super) fn unmark(&self, id: &(TierRef, StoreKey)) -> u64 {
        let Some((mark, bytes)) = self.with_cached(|c| c.marks.remove(id)) else {
            return 0;
        };
        // One that stays is taken away by whoever finds nothing beside it.
        let _ = remove_file(&mark);
        bytes
    }

    /// Cached replicas of this run on tiers where another run waits for space. They are not cached any more: the caller removes
    /// them.
    pub(crate) fn wanted_by_others(&self) -> Vec<(TierRef, PartRef, StoreKey)> {
        let wait = |a: &TierAccount| a.state.lock().is_ok_and(|m| m.others_wait);
        let accounts: Vec<bool> = self.accounts.iter().map(wait).collect();
        if !accounts.contains(&true) {
            return Vec::new();
        }
        let wanted = |tier_ref: &TierRef| {
            self.tier_refs
                .get(tier_ref)
                .is_some_and(|(at, _)| accounts[*at])
        };
        self.with_cached(|c| {
            let all = std::mem::take(&mut c.candidates);
            let (go, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|(s, ..)| wanted(s));
            c.candidates = stay.into();
            let ids = go.iter().map(|(tier_ref, _, key)| (*tier_ref, key.clone()));
            c.dropped.extend(ids);
            go
        })
    }

    /// The oldest cached replica of this run that is in the way of `bytes` more on a tier, if some is. It is not cached any more:
    /// the caller removes it.
    pub(crate) fn in_the_way_of(
        &self,
        tier_ref: TierRef,
        bytes: u64,
    ) -> Option<(TierRef, PartRef, StoreKey)> {
        let &(at, _) = self.tier_refs.get(&tier_ref)?;
        let of_account = self.accounts[at].lack(bytes) > 0;
        if !of_account && !self.lacks(tier_ref, bytes) {
            return None;
        }
        let helps = |s: &TierRef| {
            *s == tier_ref || of_account && self.tier_refs.get(s).is_some_and(|(a, _)| *a == at)
        };
        self.with_cached(|c| {
            let found = c.candidates.iter().position(|(s, ..)| helps(s))?;
            let (tier_ref, part, key) = c.candidates.remove(found)?;
            c.dropped.insert((tier_ref, key.clone()));
            Some((tier_ref, part, key))
        })
    }

    /// Removes what ended runs of other workspaces have cached, as far as it is in the way of `bytes` more on a tier.
    pub(crate) fn clear_others_cache(&self, tier_ref: TierRef, bytes: u64, mover: &dyn Mover) {
        let Some(&(at, _)) = self.tier_refs.get(&tier_ref) else {
            return;
        };
        let account = &self.accounts[at];
        let is_cached = account.state.lock().is_ok_and(|m| m.others_cached > 0);
        let lack = account.lack(bytes);
        if is_cached && lack > 0 {
            self.reclaim(account, lack, mover);
        }
    }
}
