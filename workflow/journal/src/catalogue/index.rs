//! From a run's log to rows.

use super::{Catalogue, CatalogueError, sql};
use crate::changes::{self, ChangeKind, ReplicaChange, StoredAt};
use crate::log::LogReader;
use crate::runs;
use rusqlite::{Transaction, params};
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::action::Outcome;
use tarn_types::bounds::CACHE_LEASE;
use tarn_types::cluster::Cluster;
use tarn_types::event::Start;
use tarn_types::history::{History, InstanceState, Replica};
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::part::{Place, StoreKey, TransferKind};
use tarn_types::units::{SECOND, Time};
use tarn_types::workflow::Keep;

/// Why a row could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

type Indexed = Result<(), IndexError>;

/// Parts that the user keeps, and until when.
type Pins = BTreeMap<String, Option<i64>>;

/// SQLite's integers have a sign; nothing tarn counts comes near the bound.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A log with the run that wrote it.
struct Indexing<'a> {
    tx: &'a Transaction<'a>,
    run: &'a str,
    start: &'a Start,
    history: &'a History,
}

impl Catalogue {
    /// The lengths of the logs, as they were when they were indexed.
    pub(super) fn indexed_lengths(&self) -> Result<BTreeMap<String, u64>, CatalogueError> {
        let read = || -> rusqlite::Result<BTreeMap<String, u64>> {
            let mut query = self.db.prepare_cached("SELECT name, log_bytes FROM runs")?;
            let rows = query.query_map([], |r| Ok((r.get(0)?, r.get::<_, i64>(1)? as u64)))?;
            rows.collect()
        };
        read().map_err(sql("read", &self.path))
    }

    pub(super) fn index_log(&mut self, run: &str) -> Result<(), CatalogueError> {
        let (history, bytes) = runs::fold(LogReader::open(&self.state.log(run))?)?;
        let Some(start) = history.start.as_deref() else {
            return Ok(());
        };
        let changes = changes::read(&self.state)?;
        self.transaction(|tx| {
            let indexing = Indexing {
                tx,
                run,
                start,
                history: &history,
            };
            indexing.run_row(bytes)?;
            indexing.tiers()?;
            indexing.instances()?;
            let pins = indexing.pins()?;
            indexing.removed(&pins)?;
            indexing.replaced()?;
            indexing.replicas(&pins)?;
            indexing.dests()?;
            apply_changes(tx, &changes)
        })
    }
}

impl Indexing<'_> {
    fn wall(&self, at: Time) -> u64 {
        self.start.wall.saturating_add(at / SECOND)
    }

    fn run_row(&self, log_bytes: u64) -> Indexed {
        let h = self.history;
        let moved = h.moved();
        let bytes = |kind| int(moved.get(&kind).copied().unwrap_or(0));
        let done = h.instances.values().filter(|i| i.state.is_done()).count();
        let ended = h.outcome.map(|(at, _)| int(self.wall(at)));
        let outcome = h
            .outcome
            .map(|(_, o)| serde_json::to_string(&o))
            .transpose()?;
        self.tx
            .execute("DELETE FROM runs WHERE name = ?1", [self.run])?;
        self.tx.execute(
            "INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            params![
                self.run,
                self.start.workflow.name,
                self.start.workspace,
                int(self.start.wall),
                ended,
                outcome,
                h.instances.len() as i64,
                done as i64,
                bytes(TransferKind::ExternalIn),
                bytes(TransferKind::ExternalOut),
                bytes(TransferKind::Peer),
                bytes(TransferKind::Promote),
                bytes(TransferKind::Demote),
                int(h.retained),
                int(log_bytes),
            ],
        )?;
        Ok(())
    }

    /// Every tier of every node that the run could use: data that it leaves there if it dies is recorded nowhere else.
    fn tiers(&self) -> Indexed {
        let mut insert = self
            .tx
            .prepare_cached("INSERT OR IGNORE INTO tiers VALUES (?1, ?2, ?3)")?;
        for (node, n) in (0..).map(NodeId).zip(&self.start.cluster.nodes) {
            for tier in (0..n.tiers.len() as u32).map(TierId) {
                let Some(at) = self.stored_at(&Place::Node(TierRef { node, tier })) else {
                    continue;
                };
                insert.execute(params![
                    self.start.workflow.name,
                    self.start.workspace,
                    serde_json::to_string(&at)?
                ])?;
            }
        }
        Ok(())
    }

    fn instances(&self) -> Indexed {
        self.tx
            .execute("DELETE FROM instances WHERE run = ?1", [self.run])?;
        let mut insert = self
            .tx
            .prepare_cached("INSERT INTO instances VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
        let workflow = &self.start.workflow;
        for (id, instance) in &self.history.instances {
            let known = matches!(
                instance.state,
                InstanceState::Committed | InstanceState::Reused
            );
            let (true, Some(identity)) = (known, instance.identity) else {
                continue;
            };
            let Some(step) = workflow.steps.get(id.step.at()) else {
                continue;
            };
            insert.execute(params![
                workflow.name,
                identity.to_string(),
                self.run,
                int(self.start.wall),
                step.name,
                step.code.to_string(),
                self.history.item(*id),
                serde_json::to_string(&instance.outputs)?,
            ])?;
        }
        Ok(())
    }

    /// Until when the user keeps parts. A part that a run moves stays kept as before.
    fn pins(&self) -> Result<Pins, IndexError> {
        let mut query = self.tx.prepare_cached(
            "SELECT key, kept_until FROM replicas WHERE by_user AND workflow = ?1 AND workspace = ?2
             AND json_extract(place, '$.external') IS NULL",
        )?;
        let of = params![self.start.workflow.name, self.start.workspace];
        let rows = query.query_map(of, |r| Ok((r.get(0)?, r.get(1)?)))?;
        let mut pins = Pins::new();
        for row in rows {
            let (key, until): (String, Option<i64>) = row?;
            let longest = pins.entry(key).or_insert(until);
            *longest = longest.zip(until).map(|(a, b)| a.max(b));
        }
        Ok(pins)
    }

    /// Deletes the replicas that the run has removed. A pinned part stays listed until it is there elsewhere, is made
    /// again, or is released: if it is gone all the same, the next run reports it.
    fn removed(&self, pins: &Pins) -> Indexed {
        let there = self
            .history
            .replicas
            .iter()
            .filter(|(_, at)| !at.is_empty());
        let there = there.filter_map(|(part, _)| self.history.parts.get(part));
        let there: BTreeSet<&StoreKey> = there.map(|info| &info.key).collect();
        let stays = |key: &StoreKey| pins.get(&key.0) == Some(&None) && !there.contains(key);
        // The run may have moved it meanwhile: it stays where it was last.
        let mut last: BTreeMap<&StoreKey, (Time, &Place)> = BTreeMap::new();
        for ((key, place), at) in self.history.removed.iter().filter(|((k, _), _)| stays(k)) {
            let latest = last.entry(key).or_insert((*at, place));
            if latest.0 < *at {
                *latest = (*at, place);
            }
        }
        let mut moved = self.tx.prepare_cached(
            "UPDATE OR IGNORE replicas SET place = ?2 WHERE key = ?1 AND since <= ?3 AND by_user
             AND json_extract(place, '$.external') IS NULL",
        )?;
        for (key, (at, place)) in &last {
            if let Some(stored_at) = self.stored_at(place) {
                let place = serde_json::to_string(&stored_at)?;
                moved.execute(params![key.0, place, int(self.wall(*at))])?;
            }
        }
        let stays_at = |key, place| last.get(key).is_some_and(|(_, last)| *last == place);
        let mut delete = self
            .tx
            .prepare_cached("DELETE FROM replicas WHERE key = ?1 AND place = ?2 AND since <= ?3")?;
        for ((key, place), at) in self
            .history
            .removed
            .iter()
            .filter(|((key, place), _)| !stays_at(key, place))
        {
            let Some(stored_at) = self.stored_at(place) else {
                continue;
            };
            let place = serde_json::to_string(&stored_at)?;
            delete.execute(params![key.0, place, int(self.wall(*at))])?;
        }
        Ok(())
    }

    /// Deletes the deliveries of earlier runs that this run has replaced in a `dest`.
    fn replaced(&self) -> Indexed {
        let mut delete = self.tx.prepare_cached(
            "DELETE FROM replicas WHERE workflow = ?1 AND dataset = ?2 AND place = ?3 AND since <= ?4 AND run <> ?5
             AND key NOT IN (SELECT value FROM json_each(?6))",
        )?;
        for (data, delivery) in &self.history.delivered {
            let Some(dataset) = self.start.workflow.data.get(data.at()) else {
                continue;
            };
            let parts = self.history.parts_of(*data, delivery.version);
            let parts: Vec<&str> = parts.map(|(_, info)| info.key.0.as_str()).collect();
            delete.execute(params![
                self.start.workflow.name,
                dataset.name,
                serde_json::to_string(&StoredAt::External(delivery.path.clone()))?,
                int(self.wall(delivery.at)),
                self.run,
                serde_json::to_string(&parts)?,
            ])?;
        }
        Ok(())
    }

    fn replicas(&self, pins: &Pins) -> Indexed {
        let mut insert = self.tx.prepare_cached(
            "INSERT INTO replicas VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?12, ?11, ?13)
             ON CONFLICT (key, place) DO UPDATE SET run = excluded.run, since = excluded.since,
             stored = excluded.stored, version = excluded.version, dataset = excluded.dataset,
             kept = CASE WHEN by_user THEN kept ELSE excluded.kept END,
             kept_until = CASE WHEN by_user THEN kept_until ELSE excluded.kept_until END,
             by_user = by_user OR excluded.by_user",
        )?;
        let workflow = &self.start.workflow;
        let there = self.history.replicas.iter().flat_map(|(part, places)| {
            let info = self.history.parts.get(part);
            info.into_iter().flat_map(move |info| {
                let with_part =
                    |(place, r): (_, &Replica)| (&info.key, *part, place, info.bytes, *r);
                places.iter().map(with_part)
            })
        });
        // A lost node may still hold its replicas: the next run that reaches it finds out.
        let unreachable = self.history.unreachable.iter();
        let unreachable = unreachable.map(|((key, at), u)| (key, u.part, at, u.bytes, u.replica));
        for (key, part, place, bytes, replica) in there.chain(unreachable) {
            let dataset = workflow.data.get(part.data.at());
            let (Some(dataset), Some(stored_at)) = (dataset, self.stored_at(place)) else {
                continue;
            };
            // Of a dataset that is changed in place, the last version is to be kept.
            let kept = matches!(dataset.keep, Keep::For(_) | Keep::Forever)
                && workflow.last_version(part.data) == part.version;
            let is_ours = !matches!(place, Place::External(_));
            let is_pinned = self.start.is_pinned(part.data) && kept;
            let pin = pins.get(&key.0).copied().or(is_pinned.then_some(None));
            let pin = pin.filter(|_| is_ours);
            insert.execute(params![
                key.0,
                serde_json::to_string(&stored_at)?,
                workflow.name,
                self.start.workspace,
                dataset.name,
                part.version,
                int(bytes),
                int(replica.stored),
                self.run,
                int(self.wall(replica.since)),
                match (pin, kept) {
                    (Some(until), _) => until,
                    (None, true) => self.kept_until(dataset.keep, replica.since).map(int),
                    (None, false) => self.cached_until(place).map(int),
                },
                // The content of a `dest` is the user's.
                kept || !is_ours || pin.is_some(),
                pin.is_some(),
            ])?;
        }
        Ok(())
    }

    /// A lease on time begins when the run ends; of one that has not (yet), when the replica came.
    fn kept_until(&self, keep: Keep, since: Time) -> Option<u64> {
        let Keep::For(nanos) = keep else {
            return None;
        };
        let from = self.history.outcome.map_or(since, |(end, _)| end);
        Some(self.wall(from).saturating_add(nanos.div_ceil(SECOND)))
    }

    /// Until when a replica on a node that nobody keeps stays as cache: only if its run has ended well.
    fn cached_until(&self, place: &Place) -> Option<u64> {
        let (end, outcome) = self.history.outcome?;
        let cached = self.start.options.cache > 0
            && outcome == Outcome::Done
            && matches!(place, Place::Node(_));
        cached.then(|| self.wall(end).saturating_add(CACHE_LEASE))
    }

    fn dests(&self) -> Indexed {
        let workflow = &self.start.workflow;
        for (data, delivery) in &self.history.delivered {
            let (Some(dataset), Some(hash)) = (workflow.data.get(data.at()), delivery.hash) else {
                continue;
            };
            self.tx.execute(
                "INSERT INTO dests VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (workflow, dataset) DO UPDATE SET path = excluded.path, version = excluded.version,
                 hash = excluded.hash, run = excluded.run, wall = excluded.wall WHERE excluded.wall >= wall",
                params![
                    workflow.name,
                    dataset.name,
                    serde_json::to_string(&delivery.path)?,
                    delivery.version,
                    hash.to_string(),
                    self.run,
                    int(self.wall(delivery.at)),
                ],
            )?;
        }
        Ok(())
    }

    fn stored_at(&self, place: &Place) -> Option<StoredAt> {
        stored_at(
            place,
            &self.start.cluster,
            self.start.workflow.external.as_deref(),
            self.start.allocation.is_some(),
        )
    }
}

/// The names of a place; `None` for a source, or a place that the cluster does not have. `machines`: whether its nodes are
/// machines of their own.
pub(super) fn stored_at(
    place: &Place,
    cluster: &Cluster,
    external: Option<&std::path::Path>,
    machines: bool,
) -> Option<StoredAt> {
    match place {
        Place::Node(tier_ref) => {
            let node = cluster.nodes.get(tier_ref.node.at())?;
            let tier = node.tiers.get(tier_ref.tier.at())?;
            Some(StoredAt::Node {
                name: node.name.clone(),
                tier: tier.name.clone(),
                root: tier.root.clone(),
                machine: machines,
            })
        }
        Place::External(path) => Some(StoredAt::External(path.clone())),
        Place::Drained => Some(StoredAt::Drained(external?.to_path_buf())),
        Place::Source => None,
    }
}

/// Changes count for replicas that are not younger than they are.
pub(super) fn apply_changes(tx: &Transaction<'_>, changes: &[ReplicaChange]) -> Indexed {
    for change in changes {
        let place = serde_json::to_string(&change.at)?;
        let (key, wall) = (&change.key.0, int(change.wall));
        match change.change {
            ChangeKind::Removed => tx.execute(
                "DELETE FROM replicas WHERE key = ?1 AND place = ?2 AND since <= ?3",
                params![key, place, wall],
            )?,
            // The part is kept, wherever it is stored: a run may have moved it.
            ChangeKind::KeptUntil(until) => tx.execute(
                "UPDATE replicas SET kept = 1, kept_until = ?4, by_user = 1 WHERE key = ?1 AND since <= ?3
                 AND (place = ?2 OR coalesce(json_extract(place, '$.external'), json_extract(?2, '$.external')) IS NULL)",
                params![key, place, wall, until.map(int)],
            )?,
        };
    }
    Ok(())
}
