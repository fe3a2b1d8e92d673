//! The data of a run on the nodes of its world, shared by the threads that move, list and remove it.

use crate::sockets::{Near, Sockets};
use crate::storage::drained::{is_there, remove_drained};
use crate::storage::keys::DataKeys;
use crate::storage::ledger::{Ledgers, Reservation};
use crate::storage::run_facts::RunFacts;
use crate::storage::source_memory::Remembered;
use crate::storage::store::{failure, is_folder, unsealed, warn};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use tarn_ports::{Control, Mover, MoverError, Peers, Progress};
use tarn_types::checkpoint::CheckpointId;
use tarn_types::event::{Event, RunError, RunErrorKind};
use tarn_types::hash::Hash;
use tarn_types::id::{DataId, InstanceId, TierRef};
use tarn_types::key::DataKey;
use tarn_types::manifest::Manifest;
use tarn_types::nodes::OwnedNodes;
use tarn_types::object::is_object;
use tarn_types::part::{PartClass, PartRef, Place, StoreKey};
use tarn_types::workflow::Dataset;

/// Something for the loop.
#[derive(Debug)]
pub(crate) enum NodeLoopEvent {
    /// The outcome of an action.
    Outcome(Event),
    /// Something that happened by itself.
    Notification(Event),
    /// Nothing but: look around.
    Wake,
}

/// The replicas of a run: where they are, what they take, what moves them. Through it the fixed facts of the run are reached.
pub(crate) struct DataContext {
    pub(crate) facts: RunFacts,
    /// Replicas on nodes of other worlds.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    pub(crate) mover: Arc<dyn Mover>,
    /// The keys of encrypted datasets, where the workflow has any.
    pub(crate) keys: Option<DataKeys>,
    pub(crate) ledgers: Ledgers,
    /// The sockets to which movement and steps are bound, if there are several.
    pub(crate) sockets: Option<Sockets>,
    pub(crate) progress: Progress,
    pub(crate) remembered: Mutex<Remembered>,
    pub(crate) parts: Mutex<BTreeMap<PartRef, (PartClass, StoreKey)>>,
    /// The content of parts that are known from earlier.
    pub(crate) hashes: Mutex<BTreeMap<StoreKey, Hash>>,
    /// The folders of other workflows' replicas that this run reads.
    pub(crate) others: Mutex<BTreeMap<(TierRef, StoreKey), PathBuf>>,
    /// Whether earlier runs have committed steps that this one may take over.
    pub(crate) reusable: AtomicBool,
    /// The newest image of each instance that this world has copied to an own node.
    pub(crate) copied: Mutex<BTreeMap<InstanceId, CheckpointId>>,
    pub(crate) deliveries: Sender<NodeLoopEvent>,
}

impl Deref for DataContext {
    type Target = RunFacts;

    fn deref(&self) -> &RunFacts {
        &self.facts
    }
}

impl DataContext {
    pub(crate) fn deliver(&self, delivery: NodeLoopEvent) {
        // The receiver is gone only when the world is being dropped: then nobody waits for it.
        let _ = self.deliveries.send(delivery);
    }

    /// The keys that the parts of a dataset are sealed with on the nodes, if they are.
    fn keys_of(&self, data: DataId) -> Result<Option<(&Dataset, &DataKeys)>, RunError> {
        let dataset = self.dataset(data)?;
        if !dataset.encrypt {
            return Ok(None);
        }
        let keys = self.keys.as_ref().ok_or_else(|| {
            let message = format!(
                "dataset `{}` is encrypted, and no key is at hand",
                dataset.name
            );
            failure(RunErrorKind::Io, message)
        })?;
        Ok(Some((dataset, keys)))
    }

    /// The key that the replicas of a part are sealed with, if they are.
    pub(crate) fn key(
        &self,
        data: DataId,
        part: &StoreKey,
    ) -> Result<Option<Arc<DataKey>>, RunError> {
        let keys = self.keys_of(data)?;
        keys.map(|(d, keys)| keys.get(&d.name, part)).transpose()
    }

    /// The key that a part is to be sealed with, if it is.
    pub(crate) fn new_key(
        &self,
        data: DataId,
        part: &StoreKey,
    ) -> Result<Option<Arc<DataKey>>, RunError> {
        let keys = self.keys_of(data)?;
        keys.map(|(d, keys)| keys.make(&d.name, part)).transpose()
    }

    /// The key of a part is forgotten if no replica of it is left. Of several worlds none knows that by itself:
    /// [`Self::forget_gone`].
    pub(crate) fn forget_key(&self, part: &StoreKey) -> Result<(), RunError> {
        match (&self.own, self.part_of(part)) {
            (OwnedNodes::All, Some(known)) => self.forget_gone(known.data, part),
            _ => Ok(()),
        }
    }

    /// The same, of a part of which no other world has a replica.
    pub(crate) fn forget_gone(&self, data: DataId, part: &StoreKey) -> Result<(), RunError> {
        match (self.dataset(data)?, &self.keys) {
            (dataset, Some(keys)) if dataset.encrypt && !self.is_somewhere(part) => {
                keys.forget(&dataset.name, part)
            }
            _ => Ok(()),
        }
    }

    /// The keys of all parts that have neither a replica nor a manifest any more are forgotten.
    pub(crate) fn forget_keys(&self) -> Result<(), RunError> {
        let described = |part: &StoreKey| self.manifest_file(part).exists();
        let needed = |part: &StoreKey| described(part) || self.is_somewhere(part);
        self.keys.as_ref().map_or(Ok(()), |keys| keys.keep(needed))
    }

    /// The keys of what this run has made or brought, and of which no replica is left, are forgotten. Of several worlds the one without
    /// nodes forgets those of parts that nothing describes any more: such as an attempt has begun that was not to be.
    pub(crate) fn forget_own_keys(&self) -> Result<(), RunError> {
        match &self.own {
            OwnedNodes::All => {}
            OwnedNodes::Some(_) if self.is_home() => return self.forget_keys(),
            OwnedNodes::Some(_) => return Ok(()),
        }
        let known = self.parts.lock().ok();
        let known: Vec<StoreKey> = known.map_or_else(Vec::new, |parts| {
            parts.values().map(|(_, key)| key.clone()).collect()
        });
        match &self.keys {
            Some(_) => known.iter().try_for_each(|part| self.forget_key(part)),
            None => Ok(()),
        }
    }

    /// Whether there is a replica of a part, or a beginning of one.
    fn is_somewhere(&self, part: &StoreKey) -> bool {
        let there = |path: PathBuf| path.symlink_metadata().is_ok();
        // While an object store gives no answer, it may be there.
        let outside = |path: PathBuf| self.is_there(&path).unwrap_or(true);
        let on = |(tier_ref, ..): (TierRef, _, _)| {
            let dir = self.tier_dir(tier_ref);
            dir.is_ok_and(|d| there(d.part(part)) || there(d.incoming().join(&part.0)))
        };
        self.own_tiers().any(on) || self.drained(part).is_ok_and(outside)
    }

    /// Whether the folder of a replica is there.
    pub(crate) fn is_there(&self, replica: &Path) -> Result<bool, RunError> {
        match is_object(replica) {
            true => is_there(replica, &self.workspace, &*self.mover),
            false => Ok(is_folder(replica)),
        }
    }

    /// The listing of a replica, with the sizes of what is `sealed` in it.
    pub(crate) fn list_replica(&self, root: &Path, sealed: bool) -> Result<Manifest, MoverError> {
        let mut listed = self.mover.list(root, &Control::default())?;
        if sealed {
            listed.entries.iter_mut().for_each(unsealed);
        }
        Ok(listed)
    }

    /// The content of a replica, which is sealed with this key, or not.
    pub(crate) fn digest_replica(
        &self,
        root: &Path,
        key: Option<&Arc<DataKey>>,
    ) -> Result<Manifest, MoverError> {
        match key {
            Some(key) => self.mover.digest_sealed(root, key, &Control::default()),
            None => self.mover.digest(root, &Control::default()),
        }
    }

    /// This thread runs near a tier of an own node as long as the guard is there, if that is on a socket.
    pub(crate) fn near(&self, tier_ref: TierRef) -> Option<Near> {
        let sockets = self
            .sockets
            .as_ref()
            .filter(|_| self.own.has(tier_ref.node))?;
        sockets.near(self.tier_name(tier_ref)?)
    }

    /// The path of a part's replica on a node's tier.
    pub(crate) fn replica(&self, tier_ref: TierRef, key: &StoreKey) -> Result<PathBuf, RunError> {
        match self.others_at(tier_ref, key) {
            Some(folder) => Ok(folder),
            None => Ok(self.tier_dir(tier_ref)?.part(key)),
        }
    }

    /// The path of a part's replica, if it is another workflow's: then this run neither counts nor removes it.
    pub(crate) fn others_at(&self, tier_ref: TierRef, key: &StoreKey) -> Option<PathBuf> {
        let others = self.others.lock().ok()?;
        match others.is_empty() {
            true => None,
            false => others.get(&(tier_ref, key.clone())).cloned(),
        }
    }

    /// A replica of another workflow is not read any more.
    pub(crate) fn leave_to_others(&self, tier_ref: TierRef, key: &StoreKey) -> bool {
        let others = self.others.lock().ok();
        others.is_some_and(|mut others| others.remove(&(tier_ref, key.clone())).is_some())
    }

    pub(crate) fn know(&self, part: PartRef, class: PartClass, key: StoreKey) {
        if let Ok(mut parts) = self.parts.lock() {
            parts.insert(part, (class, key));
        }
    }

    /// Class and key of a part that was listed, committed or made known.
    pub(crate) fn known(&self, part: &PartRef) -> Result<(PartClass, StoreKey), RunError> {
        let parts = self.parts.lock().ok();
        parts.and_then(|p| p.get(part).cloned()).ok_or_else(|| {
            failure(
                RunErrorKind::Io,
                format!(
                    "part {part} has never been seen by this run; `tarn resume` starts from the log"
                ),
            )
        })
    }

    /// Claims space on a tier; replicas of earlier runs that nobody wants to keep make way for it.
    pub(crate) fn reserve(
        &self,
        tier_ref: TierRef,
        bytes: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation<'_>, RunError> {
        self.ledgers.make_way(tier_ref, bytes, &*self.mover);
        if self.report_kept(tier_ref, bytes) {
            return Err(failure(
                RunErrorKind::Cancelled,
                "data that is kept from earlier runs takes the space that was planned for it; tarn looks for a node again",
            ));
        }
        self.clear_cache(tier_ref, bytes);
        // Called before each pause: data that has been cached meanwhile makes way, too.
        let cancelled = || {
            self.clear_cache(tier_ref, bytes);
            cancelled()
        };
        self.ledgers.reserve(tier_ref, bytes, &cancelled)
    }

    /// Removes cached data that is in the way of `bytes` more on a tier: first what ended runs have left, then this run's own.
    fn clear_cache(&self, tier_ref: TierRef, bytes: u64) {
        self.ledgers
            .clear_others_cache(tier_ref, bytes, &*self.mover);
        while let Some((at, part, key)) = self.ledgers.in_the_way_of(tier_ref, bytes) {
            let at = Place::Node(at);
            let gone = self.evict(part, &key, &at);
            self.deliver(NodeLoopEvent::Notification(gone));
        }
    }

    /// Reports replicas kept from earlier runs to the engine, if they are in the way of `bytes` more and were not reported
    /// before.
    fn report_kept(&self, tier_ref: TierRef, bytes: u64) -> bool {
        let Some(capacities) = self.ledgers.kept_in_the_way(tier_ref, bytes) else {
            return false;
        };
        for (tier_ref, bytes) in capacities {
            self.deliver(NodeLoopEvent::Notification(Event::Capacity {
                tier_ref,
                bytes,
            }));
        }
        true
    }

    /// Claims `bytes` in all instead of what was claimed, for what is on the tier already; else what is in the way there.
    pub(crate) fn grow(
        &self,
        tier_ref: TierRef,
        reserved: &mut Reservation<'_>,
        bytes: u64,
    ) -> Result<(), u64> {
        let more = bytes.saturating_sub(reserved.bytes());
        self.ledgers.make_way(tier_ref, more, &*self.mover);
        self.clear_cache(tier_ref, more);
        let grown = reserved.grow(bytes);
        if grown.is_err() {
            self.report_kept(tier_ref, more);
        }
        grown
    }

    /// The part that is stored under a key, if this run knows it.
    pub(crate) fn part_of(&self, key: &StoreKey) -> Option<PartRef> {
        let parts = self.parts.lock().ok()?;
        let found = parts.iter().find(|(_, (_, k))| k == key);
        found.map(|(part, _)| *part)
    }

    /// Removes a replica; the event to report. One that cannot be removed is reported as gone, because nothing may use it any
    /// more, and every later clean-up tries again.
    pub(crate) fn evict(&self, part: PartRef, key: &StoreKey, at: &Place) -> Event {
        self.take_back(at, key);
        Event::Evicted {
            part,
            at: at.clone(),
        }
    }

    /// Removes a replica, if it is there: an action that fails in the middle leaves nothing visible and nothing counted. A
    /// replica that cannot be removed stays counted, and is reported on stderr.
    pub(crate) fn take_back(&self, at: &Place, key: &StoreKey) {
        let removed = match at {
            Place::Node(tier_ref) if self.leave_to_others(*tier_ref, key) => return,
            Place::Node(tier_ref) => self.replica(*tier_ref, key).and_then(|path| {
                self.mover.remove(&path)?;
                self.ledgers.left(*tier_ref, key);
                Ok(())
            }),
            Place::Drained => self
                .drained(key)
                .and_then(|path| remove_drained(&path, &self.workspace, &*self.mover)),
            Place::Source | Place::External(_) => Ok(()),
        };
        let forgotten = removed.and_then(|()| self.forget_key(key));
        if let Err(e) = forgotten {
            warn(&format!(
                "the replica {} could not be removed: {}",
                key.0, e.message
            ));
        }
    }
}
