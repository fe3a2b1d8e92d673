//! Queries of the catalogue.

use super::index::stored_at;
use super::{Catalogue, CatalogueError, DatasetRow, DestRow, ReplicaRow, RunRow, json, sql};
use crate::changes::StoredAt;
use rusqlite::{Params, Row, params};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use tarn_types::cluster::Cluster;
use tarn_types::event::{Output, PriorInstance};
use tarn_types::hash::Hash;
use tarn_types::history::Traffic;
use tarn_types::id::{NodeId, TierId, TierRef};
use tarn_types::object::is_object;
use tarn_types::part::{Place, StoreKey};
use tarn_types::workflow::Workflow;

/// Instances of earlier runs that are looked at for reuse, newest first: all that a run's first record is to hold.
pub const MAX_PRIOR: usize = 200_000;

impl Catalogue {
    fn all<T>(
        &self,
        query: &str,
        params: impl Params,
        row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, CatalogueError> {
        let read = || -> rusqlite::Result<Vec<T>> {
            let mut query = self.db.prepare_cached(query)?;
            query.query_map(params, row)?.collect()
        };
        read().map_err(sql("read", &self.path))
    }

    fn decode<T: DeserializeOwned>(&self, text: &str) -> Result<T, CatalogueError> {
        serde_json::from_str(text).map_err(json(&self.path))
    }

    /// All runs, oldest first.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn runs(&self) -> Result<Vec<RunRow>, CatalogueError> {
        let rows = self.all(
            "SELECT name, workflow, wall, ended, outcome, instances, done,
             external_in, external_out, peer, promote, demote, retained FROM runs ORDER BY wall, name",
            [],
            |r| {
                let bytes = Traffic {
                    external_in: count(r, 7)?,
                    external_out: count(r, 8)?,
                    peer: count(r, 9)?,
                    promote: count(r, 10)?,
                    demote: count(r, 11)?,
                    retained: count(r, 12)?,
                };
                let row = RunRow {
                    name: r.get(0)?,
                    workflow: r.get(1)?,
                    wall: count(r, 2)?,
                    ended: maybe_count(r, 3)?,
                    outcome: None,
                    instances: count(r, 5)?,
                    done: count(r, 6)?,
                    bytes,
                };
                Ok((row, r.get::<_, Option<String>>(4)?))
            },
        )?;
        let outcome = |(mut row, text): (RunRow, Option<String>)| {
            row.outcome = text.map(|t| self.decode(&t)).transpose()?;
            Ok(row)
        };
        rows.into_iter().map(outcome).collect()
    }

    /// The stored datasets, by version and place.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn datasets(&self) -> Result<Vec<DatasetRow>, CatalogueError> {
        let rows = self.all(
            "SELECT workflow, dataset, version, place, count(*), sum(bytes), sum(stored), min(kept_until), min(kept)
             FROM replicas WHERE substr(key, 1, length(dataset) + 4) <> dataset || '.of.'
             GROUP BY workflow, dataset, version, place ORDER BY 1, 2, 3, 4",
            [],
            |r| {
                let head = (r.get(0)?, r.get(1)?, r.get(2)?, r.get::<_, String>(3)?);
                let sums = (count(r, 4)?, count(r, 5)?, count(r, 6)?);
                Ok((head, sums, maybe_count(r, 7)?, r.get(8)?))
            },
        )?;
        let mut datasets = Vec::with_capacity(rows.len());
        for (head, (parts, bytes, stored), kept_until, kept) in rows {
            let (workflow, dataset, version, place) = head;
            datasets.push(DatasetRow {
                workflow,
                dataset,
                version,
                at: self.decode(&place)?,
                parts,
                bytes,
                stored,
                kept,
                kept_until,
            });
        }
        Ok(datasets)
    }

    /// The replicas of a workflow, of one of its datasets or of all.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn replicas(
        &self,
        workflow: &str,
        dataset: Option<&str>,
    ) -> Result<Vec<ReplicaRow>, CatalogueError> {
        self.replica_rows(
            "WHERE workflow = ?1 AND (?2 IS NULL OR dataset = ?2)",
            params![workflow, dataset],
        )
    }

    /// The replicas that are not to be kept any more at `wall` (seconds since 1970).
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn expired(&self, wall: u64) -> Result<Vec<ReplicaRow>, CatalogueError> {
        self.replica_rows("WHERE kept_until <= ?1", params![super::index::int(wall)])
    }

    fn replica_rows(
        &self,
        filter: &str,
        params: impl Params,
    ) -> Result<Vec<ReplicaRow>, CatalogueError> {
        let query = format!(
            "SELECT key, place, workflow, workspace, dataset, version, bytes, stored, run, since, kept, kept_until, by_user
             FROM replicas {filter} ORDER BY workflow, dataset, version, key, place"
        );
        let rows = self.all(&query, params, |r| {
            let row = ReplicaRow {
                key: StoreKey(r.get(0)?),
                at: StoredAt::External(std::path::PathBuf::new()),
                workflow: r.get(2)?,
                workspace: r.get(3)?,
                dataset: r.get(4)?,
                version: r.get(5)?,
                bytes: count(r, 6)?,
                stored: count(r, 7)?,
                run: r.get(8)?,
                since: count(r, 9)?,
                kept: r.get(10)?,
                kept_until: maybe_count(r, 11)?,
                by_user: r.get(12)?,
            };
            Ok((row, r.get::<_, String>(1)?))
        })?;
        let place = |(mut row, text): (ReplicaRow, String)| {
            row.at = self.decode(&text)?;
            Ok(row)
        };
        rows.into_iter().map(place).collect()
    }

    /// Every tier that runs of a workflow could use, by workspace: all that is known of where dead ones may have left something.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn tiers(&self, workflow: &str) -> Result<Vec<(String, StoredAt)>, CatalogueError> {
        let rows = self.all(
            "SELECT workspace, place FROM tiers WHERE workflow = ?1 ORDER BY workspace, place",
            [workflow],
            |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)),
        )?;
        let tier = |(workspace, at): (String, String)| Ok((workspace, self.decode(&at)?));
        rows.into_iter().map(tier).collect()
    }

    /// The `dest`s that runs of a workflow have written.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn dests(&self, workflow: &str) -> Result<Vec<DestRow>, CatalogueError> {
        let rows = self.all(
            "SELECT dataset, path, version, hash, run, wall FROM dests WHERE workflow = ?1 ORDER BY dataset",
            [workflow],
            |r| {
                let texts: (String, String, String) = (r.get(0)?, r.get(1)?, r.get(3)?);
                Ok((texts, r.get(2)?, r.get(4)?, count(r, 5)?))
            },
        )?;
        let mut dests = Vec::with_capacity(rows.len());
        for ((dataset, path, hash), version, run, wall) in rows {
            dests.push(DestRow {
                workflow: workflow.to_owned(),
                dataset,
                path: self.decode(&path)?,
                version,
                hash: self.decode::<Hash>(&format!("\"{hash}\""))?,
                run,
                wall,
            });
        }
        Ok(dests)
    }

    /// The instances that earlier runs of a workflow committed and whose steps it still has, one for each identity (the
    /// step's code is a part of it): the instance of which most is still held, the newest among equals. A part is held if
    /// the logs list it on the given cluster, in the drained area of the workflow's `external`, or in a `dest` that the
    /// workflow still has; the caller checks whether it is really there. `machines`: whether the cluster's nodes are
    /// machines of their own.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn prior(
        &self,
        workflow: &Workflow,
        workspace: &str,
        cluster: &Cluster,
        machines: bool,
    ) -> Result<Vec<PriorInstance>, CatalogueError> {
        let places = self.places(workflow, workspace, cluster, machines)?;
        let codes: BTreeSet<_> = workflow.steps.iter().map(|s| s.code.to_string()).collect();
        let codes = serde_json::to_string(&codes).map_err(json(&self.path))?;
        let rows = self.all(
            "SELECT identity, outputs FROM instances
             WHERE workflow = ?1 AND code IN (SELECT value FROM json_each(?3))
             ORDER BY wall DESC, rowid DESC LIMIT ?2",
            params![workflow.name, MAX_PRIOR as i64, codes],
            |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)),
        )?;
        let mut newest: Vec<PriorInstance> = Vec::new();
        let mut seen: BTreeMap<Hash, usize> = BTreeMap::new();
        for (identity, outputs) in rows {
            let identity: Hash = self.decode(&format!("\"{identity}\""))?;
            let prior = prior_instance(identity, self.decode(&outputs)?, &places);
            match seen.get(&identity).and_then(|at| newest.get_mut(*at)) {
                Some(known) if known.held.len() < prior.held.len() => *known = prior,
                Some(_) => {}
                None => {
                    seen.insert(identity, newest.len());
                    newest.push(prior);
                }
            }
        }
        Ok(newest)
    }

    /// The places of every part of a workflow that the present cluster knows.
    fn places(
        &self,
        workflow: &Workflow,
        workspace: &str,
        cluster: &Cluster,
        machines: bool,
    ) -> Result<BTreeMap<String, Vec<Place>>, CatalogueError> {
        let mut known: BTreeMap<StoredAt, Place> = BTreeMap::new();
        for (n, node) in cluster.nodes.iter().enumerate() {
            for t in 0..node.tiers.len() {
                let place = Place::Node(TierRef {
                    node: NodeId(n as u32),
                    tier: TierId(t as u32),
                });
                known.extend(stored_at(&place, cluster, None, machines).map(|at| (at, place)));
            }
        }
        let drained = stored_at(
            &Place::Drained,
            cluster,
            workflow.external.as_deref(),
            machines,
        );
        known.extend(drained.map(|at| (at, Place::Drained)));
        // Of a result to which new parts come, the others can be read there.
        let dests = workflow.data.iter().filter_map(|d| d.dest.as_ref());
        let dests = dests.filter(|dest| !is_object(dest));
        known.extend(dests.map(|dest| {
            let place = Place::External(dest.clone());
            (StoredAt::External(dest.clone()), place)
        }));
        let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for row in self.replicas(&workflow.name, None)? {
            let place = known.get(&row.at).filter(|_| row.workspace == workspace);
            if let Some(place) = place {
                places.entry(row.key.0).or_default().push(place.clone());
            }
        }
        Ok(places)
    }
}

/// Spots are those of the present cluster: the earlier run's mean nothing in it.
fn prior_instance(
    identity: Hash,
    mut outputs: Vec<Output>,
    places: &BTreeMap<String, Vec<Place>>,
) -> PriorInstance {
    let mut held = Vec::new();
    for (o, output) in outputs.iter_mut().enumerate() {
        for (p, (info, tier_refs)) in output.parts.iter_mut().enumerate() {
            tier_refs.clear();
            for place in places.get(&info.key.0).into_iter().flatten() {
                held.push((o as u32, p as u32, place.clone()));
                if let Place::Node(tier_ref) = place {
                    tier_refs.push(*tier_ref);
                }
            }
        }
    }
    PriorInstance {
        identity,
        outputs,
        held,
    }
}

fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0))
}

fn maybe_count(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u64>> {
    let value: Option<i64> = row.get(at)?;
    Ok(value.map(|v| u64::try_from(v).unwrap_or(0)))
}
