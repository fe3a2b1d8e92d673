//! The nodes that a waiting job may have: its partitions, features, required and excluded nodes, other generic
//! resources, and reservations.

use crate::features::FeatureExpression;
use crate::gres;
use crate::marks::is_own_reservation;
use crate::mode_features::{MODE_FEATURES, can_change};
use crate::topology::ClusterTopology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_slurm::{SlurmJob, SlurmNode, SlurmReservation, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::site::NodeMask;

/// The properties from which the nodes of a job follow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ChoiceKey<'a> {
    partitions: &'a [String],
    features: &'a str,
    excluded: &'a [String],
    required: &'a [String],
    reservation: &'a str,
    gres: &'a str,
    /// The reservations of others that begin before the job would end.
    blocking: Vec<&'a str>,
}

/// The nodes of each kind of request, found once for a snapshot.
pub(crate) struct NodeChoices<'a> {
    snapshot: &'a SlurmSnapshot,
    topology: &'a ClusterTopology,
    /// Seconds since 1970.
    now: u64,
    known: BTreeMap<ChoiceKey<'a>, Result<Option<Arc<NodeMask>>, String>>,
}

impl<'a> NodeChoices<'a> {
    pub(crate) fn new(
        snapshot: &'a SlurmSnapshot,
        topology: &'a ClusterTopology,
        now: u64,
    ) -> Self {
        Self {
            snapshot,
            topology,
            now,
            known: BTreeMap::new(),
        }
    }

    /// The nodes that a job may have, `None` for all; or why it has none.
    pub(crate) fn of(
        &mut self,
        job: &'a SlurmJob,
        nodes: u32,
        limit: u64,
    ) -> Result<Option<Arc<NodeMask>>, String> {
        // A job that must have fewer nodes than it asks for is free in the choice of the others.
        let required = match job.required.len() == nodes as usize {
            true => &job.required[..],
            false => &[],
        };
        let end = self.now.saturating_add(limit);
        let blocks = |r: &&SlurmReservation| {
            let has_begun = r.is_active || r.start.is_some_and(|at| at < end);
            let is_over = r.end.is_some_and(|at| at <= self.now);
            // Those of tarn's follow from the plan, and the plan not from them.
            r.name != job.reservation && has_begun && !is_over && !is_own_reservation(&r.name)
        };
        let reservations = self.snapshot.reservations.values();
        let key = ChoiceKey {
            partitions: &job.partitions,
            features: &job.features,
            excluded: &job.excluded,
            required,
            reservation: match is_own_reservation(&job.reservation) {
                true => "",
                false => &job.reservation,
            },
            gres: &job.tres_per_node,
            blocking: reservations.filter(blocks).map(|r| &r.name[..]).collect(),
        };
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = self.find(&key);
        self.known.insert(key, found.clone());
        found
    }

    fn find(&self, key: &ChoiceKey<'a>) -> Result<Option<Arc<NodeMask>>, String> {
        let features = match key.features {
            "" => None,
            text => {
                let parsed = FeatureExpression::parse(text);
                let why = || format!("tarn does not read its constraint `{text}`");
                Some(parsed.ok_or_else(why)?)
            }
        };
        let wanted: Vec<(&str, u64)> = gres::resources(key.gres)
            .filter(|(name, _)| *name != "gpu")
            .collect();
        let fits = |node: &SlurmNode| {
            let mut active: BTreeSet<&str> = node.active_features.iter().map(|f| &f[..]).collect();
            if can_change(node) {
                // The mode is a property of the job.
                active.extend(MODE_FEATURES.iter().map(|(name, _)| *name));
            }
            let has = |(name, count): &(&str, u64)| gres::count(&node.gres, name) >= *count;
            features.as_ref().is_none_or(|f| f.holds(&active)) && wanted.iter().all(has)
        };
        let is_free_of_conditions = features.is_none() && wanted.is_empty();
        let reserved = self.reserved(key);
        let own = self.snapshot.reservations.get(key.reservation);
        let own = own.map(|r| self.numbers(&r.nodes));
        let excluded = self.numbers(key.excluded);
        let required = self.numbers(key.required);
        let is_possible = |number: &NodeId| {
            let node = || self.snapshot.nodes.get(self.topology.name(*number));
            own.as_ref().is_none_or(|own| own.contains(number))
                && (required.is_empty() || required.contains(number))
                && !excluded.contains(number)
                && !reserved.contains(number)
                && (is_free_of_conditions || node().is_some_and(fits))
        };
        let chosen = self.topology.in_partitions(key.partitions);
        let chosen: Vec<NodeId> = chosen.filter(is_possible).collect();
        match chosen.len() {
            0 => Err(
                "no node is left by its partition, constraint, exclusions and reservations"
                    .to_owned(),
            ),
            all if all == self.topology.len() => Ok(None),
            _ => Ok(Some(Arc::new(chosen.into_iter().collect()))),
        }
    }

    /// The nodes of the reservations that block.
    fn reserved(&self, key: &ChoiceKey<'a>) -> BTreeSet<NodeId> {
        let names = key.blocking.iter();
        let reservations = names.filter_map(|name| self.snapshot.reservations.get(*name));
        let nodes = reservations.flat_map(|r| self.topology.known(&r.nodes));
        nodes.collect()
    }

    fn numbers(&self, names: &[String]) -> BTreeSet<NodeId> {
        self.topology.known(names).into_iter().collect()
    }
}
