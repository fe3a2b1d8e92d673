//! The state as a planner of jobs needs it: which jobs read and make which data, and which nodes store it.

use crate::model::catalog::{VersionKey, VersionRecord, VersionState, stored_size};
use crate::model::job::{SiteJob, SiteJobPhase};
use crate::state::Site;
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{Owner, Part, SlurmJobId};
use tarn_types::units::Time;

/// The jobs that have not ended, their data, and the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanningView {
    /// Bytes of each node's stores.
    pub capacities: BTreeMap<String, u64>,
    /// The nodes that hold nothing, and that no job or order has, if nodes may sleep.
    pub spare: BTreeSet<String>,
    /// If nodes may sleep, the power that they draw, in thousandths of a watt, all by the same kind of meter: that which most have.
    pub drawn: BTreeMap<String, u64>,
    /// The jobs with data lines that have not ended, by number.
    pub jobs: BTreeMap<SlurmJobId, PlanningJob>,
    /// The versions that these jobs read or make.
    pub versions: BTreeMap<PlanningKey, PlanningVersion>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanningJob {
    /// The workflow that it is a part of.
    pub workflow: (Owner, String),
    /// When the controller got to know it.
    pub arrived: Time,
    /// The versions that it reads, and whether only its first node does.
    pub reads: Vec<(PlanningKey, bool)>,
    /// The versions that it makes.
    pub makes: Vec<PlanningKey>,
    /// Whether its outputs were published, or are about to be.
    pub is_well: bool,
    /// Whether Slurm has called for its data.
    pub is_called: bool,
    /// Whether it has, and that which is brought before it has nodes is there.
    pub is_staged: bool,
}

/// The name of a version: owner, workflow, dataset, number.
pub type PlanningKey = (Owner, String, String, u32);

/// A version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanningVersion {
    /// Bytes, as far as they are known: of a version that is not made, its declared size.
    pub bytes: u64,
    /// Whether it can be read outside: it is a source.
    pub is_outside: bool,
    /// Whether it is there, or is being published.
    pub is_made: bool,
    /// Of each of its parts, in order, the nodes that have it.
    pub parts: Vec<Vec<String>>,
}

impl Site {
    /// The state for a planner of jobs; `has_sleepers`: it may put nodes to sleep.
    pub fn planning(&self, has_sleepers: bool) -> PlanningView {
        let live = || {
            let jobs = self.jobs.iter();
            jobs.filter(|(_, job)| job.phase != SiteJobPhase::Ended)
        };
        let mut view = PlanningView::default();
        // With the bytes that jobs declare for them.
        let mut used: BTreeMap<&VersionKey, u64> = BTreeMap::new();
        for (id, job) in live() {
            let reads = job.reads.iter();
            let reads = reads.map(|r| (named(&r.version), r.on_first)).collect();
            let makes = job.makes.iter().map(|m| named(&m.version)).collect();
            let reads_sizes = job.reads.iter().map(|r| (&r.version, r.size));
            let makes_sizes = job.makes.iter().map(|m| (&m.version, m.size));
            for (version, size) in reads_sizes.chain(makes_sizes) {
                let declared = used.entry(version).or_default();
                *declared = size.max(*declared);
            }
            let has_ended = job.phase > SiteJobPhase::Running;
            view.jobs.insert(
                *id,
                PlanningJob {
                    workflow: (job.owner, job.workflow.clone()),
                    arrived: job.history.first().map_or(job.changed, |(at, _)| *at),
                    reads,
                    makes,
                    is_well: has_ended && job.is_well,
                    is_called: job.was_called,
                    is_staged: job.was_called && !job.is_bringing,
                },
            );
        }
        let mut holders = self.part_holders(&used);
        for (version, declared) in &used {
            if let Some(record) = self.catalog.version(version) {
                let planned = self.planned_version((version, *declared), record, &mut holders);
                view.versions.insert(named(version), planned);
            }
        }
        let nodes = self.nodes.iter();
        view.capacities = nodes
            .map(|(name, node)| (name.clone(), node.capacity()))
            .collect();
        if has_sleepers {
            view.spare = self.spare().into_iter().collect();
            view.drawn = self.drawn();
        }
        view
    }

    /// Figures of different meters are not compared: those of the one that most nodes have.
    fn drawn(&self) -> BTreeMap<String, u64> {
        let powers = || {
            let draws = self.draws.iter();
            draws.filter_map(|(name, (draw, _))| Some((name, draw.power?)))
        };
        let mut sources: BTreeMap<_, usize> = BTreeMap::new();
        for (_, power) in powers() {
            *sources.entry(power.source).or_default() += 1;
        }
        let most = sources.into_iter().max_by_key(|(_, nodes)| *nodes);
        let of_most = powers().filter(|(_, p)| most.is_some_and(|(s, _)| s == p.source));
        of_most
            .map(|(name, p)| (name.clone(), p.milliwatts))
            .collect()
    }

    /// The nodes that have parts of these versions, by part.
    fn part_holders(&self, used: &BTreeMap<&VersionKey, u64>) -> BTreeMap<Part, Vec<String>> {
        let mut holders: BTreeMap<Part, Vec<String>> = BTreeMap::new();
        for (name, node) in self.stock().up() {
            for part in node.parts.keys() {
                if used.contains_key(&VersionKey::of(part)) && node.has(part) {
                    holders.entry(part.clone()).or_default().push(name.clone());
                }
            }
        }
        holders
    }

    fn planned_version(
        &self,
        (key, declared): (&VersionKey, u64),
        record: &VersionRecord,
        holders: &mut BTreeMap<Part, Vec<String>>,
    ) -> PlanningVersion {
        let maker = record.maker.and_then(|id| self.jobs.get(&id));
        let known: u64 = record.parts.values().map(stored_size).sum();
        let publishes = |m: &&SiteJob| m.phase == SiteJobPhase::Publishing && m.is_well;
        // Only then, as a job may make many.
        let published = maker.filter(publishes).and_then(|maker| {
            let made = maker.makes.iter().find(|made| made.version == *key);
            made.map(|made| (maker, made))
        });
        let mut parts: Vec<Vec<String>> = Vec::new();
        for part in record.parts.keys() {
            parts.push(holders.remove(&key.part(*part)).unwrap_or_default());
        }
        if parts.is_empty()
            && let Some((maker, makes)) = published
        {
            parts = maker
                .writers(makes)
                .iter()
                .map(|n| vec![n.clone()])
                .collect();
        }
        PlanningVersion {
            bytes: if record.parts.is_empty() {
                declared
            } else {
                known
            },
            is_outside: record.source.is_some(),
            is_made: record.state == VersionState::There || published.is_some(),
            parts,
        }
    }
}

fn named(key: &VersionKey) -> PlanningKey {
    let VersionKey {
        owner,
        workflow,
        dataset,
        version,
    } = key.clone();
    (owner, workflow, dataset, version)
}
