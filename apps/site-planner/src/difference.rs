//! The events between what the planner knows and what a snapshot says: ends before begins.

use crate::SNAPSHOTS_TO_BEGIN;
use crate::data::{DataTable, NewItem};
use crate::hosted::NodeWish;
use crate::jobs::{JobTable, KnownJob, KnownStage};
use crate::topology::ClusterTopology;
use crate::wanted::{WantedJob, WantedStage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tarn_engine::plan::Planner;
use tarn_site::{PlanningJob, PlanningView};
use tarn_slurm::SlurmSnapshot;
use tarn_types::id::NodeId;
use tarn_types::site::{Job, JobId, SiteEvent};
use tarn_types::units::{SECOND, Time};

/// A job that began or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTransition {
    /// Its number in Slurm.
    pub job: u32,
    /// When it began, by Slurm.
    pub began: Time,
    /// When it had ended; `None` of one that began.
    pub ended: Option<Time>,
}

/// A difference in the making.
pub(crate) struct SnapshotDifference<'a> {
    pub(crate) planner: &'a Planner,
    pub(crate) topology: &'a ClusterTopology,
    pub(crate) jobs: &'a mut JobTable,
    pub(crate) data: &'a mut DataTable,
    pub(crate) wishes: &'a mut BTreeMap<u32, NodeWish>,
    pub(crate) view: &'a PlanningView,
    /// Seconds since 1970.
    pub(crate) read_at: u64,
    pub(crate) events: &'a mut Vec<SiteEvent>,
    pub(crate) transitions: &'a mut Vec<JobTransition>,
    /// Jobs that run on, and that the planner gets again, as they have changed.
    pub(crate) again: BTreeSet<u32>,
}

impl SnapshotDifference<'_> {
    pub(crate) fn of(&mut self, snapshot: &SlurmSnapshot, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        // The events that follow may take wishes back: they are settled first.
        self.not_begun(jobs);
        self.change(jobs);
        self.leave(jobs);
        self.nodes(snapshot);
        self.submit(jobs);
        self.begin(jobs);
        let live = jobs.values().filter_map(|job| Some(&job.data?.workflow));
        self.data.forget_flows(&live.collect());
    }

    /// Jobs that have ended, or are not planned any more.
    fn leave(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        let numbers: Vec<u32> = self.jobs.jobs.keys().copied().collect();
        for number in numbers {
            let Some(known) = self.jobs.jobs.get(&number) else {
                continue;
            };
            let wanted = jobs.get(&number);
            let is_kept = match (&known.stage, wanted.map(|w| &w.stage)) {
                // Of the jobs before it some may have ended since; where its user named others, it is submitted again.
                (KnownStage::Waits, Some(WantedStage::Waits)) => {
                    let after = wanted.map_or(&[][..], |w| &w.after);
                    after.iter().all(|number| {
                        let before = self.jobs.jobs.get(number);
                        let mut ids = before.into_iter().flat_map(|before| &before.ids);
                        ids.all(|id| known.spec.after.contains(id))
                    })
                }
                // A job that got other nodes than one island's, or another number of them, is submitted again as that.
                (KnownStage::Waits, Some(WantedStage::Has { nodes, .. })) => {
                    known.spec.nodes as usize == nodes.len()
                        && self.topology.by_island(nodes).len() == 1
                }
                (KnownStage::Refused(_), Some(WantedStage::Waits)) => {
                    wanted.is_some_and(|w| is_alike(&known.spec, &w.spec))
                }
                // So is one whose limit has changed: others count on it.
                (
                    KnownStage::Has {
                        nodes,
                        share,
                        since,
                    },
                    Some(WantedStage::Has {
                        nodes: now,
                        share: share_now,
                        since: since_now,
                    }),
                ) => {
                    let is_same = nodes == now && share == share_now && since == since_now;
                    is_same && wanted.is_some_and(|w| w.spec.limit == known.spec.limit)
                }
                _ => false,
            };
            let is_kept = is_kept && has_same_data(known, wanted);
            if !is_kept && let Some(known) = self.jobs.remove(number) {
                self.wishes.remove(&number);
                self.end(number, &known, wanted);
            }
        }
    }

    fn end(&mut self, number: u32, known: &KnownJob, wanted: Option<&WantedJob<'_>>) {
        let KnownStage::Has { since, .. } = &known.stage else {
            if known.stage == KnownStage::Waits {
                let ids = known.ids.iter();
                self.events
                    .extend(ids.map(|job| SiteEvent::Withdrawn { job: *job }));
            }
            return;
        };
        let has_ended = has_ended(wanted.map(|w| &w.stage));
        if has_ended {
            self.transitions.push(JobTransition {
                job: number,
                began: *since,
                ended: Some(self.read_at.saturating_mul(SECOND)),
            });
        } else {
            self.again.insert(number);
        }
        // An ordinary job has nothing that others wait for.
        let data = self.view.jobs.get(&number);
        let is_well = has_ended && data.is_none_or(|data| data.is_well);
        for job in &known.ids {
            self.events.push(SiteEvent::Ended {
                job: *job,
                ok: is_well,
                sizes: Vec::new(),
            });
            if !is_well {
                self.events.push(SiteEvent::Withdrawn { job: *job });
            }
        }
    }

    fn nodes(&mut self, snapshot: &SlurmSnapshot) {
        for (node, state) in self.topology.states(snapshot) {
            match (state.state.is_usable(), self.planner.is_closed(node)) {
                (true, true) => self.events.push(SiteEvent::Opened { node }),
                (false, false) => self.events.push(SiteEvent::Closed { node, until: None }),
                _ => {}
            }
        }
    }

    /// Jobs that the planner does not know.
    fn submit(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        let mut submitted: Vec<(JobId, Arc<Job>)> = Vec::new();
        let mut items: Vec<NewItem> = Vec::new();
        self.data.begin_submission();
        for (number, job) in jobs {
            if self.jobs.jobs.contains_key(number) {
                continue;
            }
            let pieces: Vec<Vec<NodeId>> = match &job.stage {
                WantedStage::Waits => vec![Vec::new()],
                WantedStage::Has { nodes, .. } => self.topology.by_island(nodes),
                WantedStage::Excluded(_) | WantedStage::Left => continue,
            };
            let mut spec = job.spec.clone();
            if let Some(data) = job.data {
                let (view, planner) = (self.view, self.planner);
                let new = self
                    .data
                    .connect(&mut spec, data, view, planner, self.topology);
                items.extend(new);
            }
            let before = job.after.iter().filter_map(|n| self.jobs.jobs.get(n));
            spec.after = before.flat_map(|before| before.ids.clone()).collect();
            let mut ids = Vec::new();
            for (at, nodes) in pieces.iter().enumerate() {
                let id = self.jobs.give_id(*number);
                ids.push(id);
                submitted.push((id, Arc::new(self.piece(&spec, nodes, at))));
            }
            let known = KnownJob {
                ids,
                spec: Arc::new(spec),
                kind: job.kind.clone(),
                data: job.data.cloned(),
                names: job.names.clone(),
                stage: KnownStage::Waits,
            };
            self.jobs.jobs.insert(*number, known);
        }
        self.submit_items(items);
        if !submitted.is_empty() {
            self.events.push(SiteEvent::Submitted {
                jobs: submitted,
                items: Vec::new(),
            });
        }
    }

    /// Data comes before the jobs that read it: one whose input is nowhere is refused.
    fn submit_items(&mut self, items: Vec<NewItem>) {
        if items.is_empty() {
            return;
        }
        let new = items.iter().map(|new| (new.id, new.item));
        self.events.push(SiteEvent::Submitted {
            jobs: Vec::new(),
            items: new.collect(),
        });
        for new in items {
            for (nodes, spread) in new.there {
                self.events.push(SiteEvent::Stored {
                    item: new.id,
                    nodes: Arc::from(nodes),
                    spread,
                    bytes: new.item.bytes,
                });
            }
        }
    }

    /// The job as the planner gets it: of a running one, the part in one island, which fits there whatever Slurm's
    /// sums say. Data belongs to the first part.
    fn piece(&self, spec: &Job, nodes: &[NodeId], at: usize) -> Job {
        let mut piece = spec.clone();
        let Some(shape) = nodes.first().and_then(|n| self.topology.shape_of(*n)) else {
            return piece;
        };
        piece.nodes = nodes.len() as u32;
        piece.cores = piece.cores.min(shape.cores);
        piece.memory = piece.memory.min(shape.memory);
        piece.gpus = piece.gpus.min(shape.gpus);
        (piece.on, piece.not_before) = (None, 0);
        piece.after.clear();
        if at > 0 {
            piece.reads.clear();
            piece.writes.clear();
        }
        piece
    }

    /// Jobs that Slurm gave nodes.
    fn begin(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        let mut begins: Vec<(Time, u32)> = jobs
            .iter()
            .filter_map(|(number, job)| match &job.stage {
                WantedStage::Has { since, .. } => Some((*since, *number)),
                _ => None,
            })
            .collect();
        begins.sort_unstable();
        for (_, number) in begins {
            let (Some(wanted), Some(known)) = (jobs.get(&number), self.jobs.jobs.get_mut(&number))
            else {
                continue;
            };
            let WantedStage::Has {
                nodes,
                share,
                since,
            } = &wanted.stage
            else {
                continue;
            };
            if known.stage != KnownStage::Waits {
                continue;
            }
            let pieces = self.topology.by_island(nodes);
            for (id, nodes) in known.ids.iter().zip(&pieces) {
                self.events.push(SiteEvent::Began {
                    job: *id,
                    nodes: Arc::from(&nodes[..]),
                    share: self.topology.share_on(*share, nodes),
                    since: *since,
                });
            }
            known.names = wanted.names.clone();
            known.stage = KnownStage::Has {
                nodes: nodes.clone(),
                share: *share,
                since: *since,
            };
            self.wishes.remove(&number);
            if !self.again.contains(&number) {
                self.transitions.push(JobTransition {
                    job: number,
                    began: *since,
                    ended: None,
                });
            }
        }
    }

    /// Jobs that wait with other properties than before.
    fn change(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        for (number, known) in &mut self.jobs.jobs {
            let wanted = jobs.get(number).filter(|w| w.stage == WantedStage::Waits);
            let Some(wanted) = wanted.filter(|_| known.stage == KnownStage::Waits) else {
                continue;
            };
            let spec = Job {
                flow: known.spec.flow,
                after: known.spec.after.clone(),
                reads: known.spec.reads.clone(),
                writes: known.spec.writes.clone(),
                ..wanted.spec.clone()
            };
            if spec == *known.spec {
                continue;
            }
            known.spec = Arc::new(spec);
            let was_allocated = |wish: &NodeWish| wish.allocated_for.is_some();
            let is_taken_back = self
                .wishes
                .remove(number)
                .as_ref()
                .is_some_and(was_allocated);
            for job in &known.ids {
                if is_taken_back {
                    self.events.push(SiteEvent::NotBegun { job: *job });
                }
                self.events.push(SiteEvent::Changed {
                    job: *job,
                    spec: known.spec.clone(),
                });
            }
        }
    }

    /// Jobs that the planner began some snapshots ago, and Slurm did not.
    fn not_begun(&mut self, jobs: &BTreeMap<u32, WantedJob<'_>>) {
        let mut given_back = Vec::new();
        for (number, wish) in self.wishes.iter_mut() {
            let waits = jobs
                .get(number)
                .is_some_and(|w| w.stage == WantedStage::Waits);
            if let Some(snapshots) = wish.allocated_for.as_mut().filter(|_| waits) {
                *snapshots += 1;
                if *snapshots >= SNAPSHOTS_TO_BEGIN {
                    given_back.push(*number);
                }
            }
        }
        for number in given_back {
            self.wishes.remove(&number);
            let ids = self.jobs.jobs.get(&number).map(|known| &known.ids);
            for job in ids.into_iter().flatten() {
                self.events.push(SiteEvent::NotBegun { job: *job });
            }
        }
    }
}

/// Whether a job that had nodes has ended: it neither has others nor waits again.
pub(crate) fn has_ended(wanted: Option<&WantedStage>) -> bool {
    matches!(wanted, None | Some(WantedStage::Left))
}

/// Whether a job reads and makes what it did: the site may have learned of its data lines later.
fn has_same_data(known: &KnownJob, wanted: Option<&WantedJob<'_>>) -> bool {
    let lines = |job: &PlanningJob| (job.workflow.clone(), job.reads.clone(), job.makes.clone());
    let now = wanted.and_then(|w| w.data).map(lines);
    known.data.as_ref().map(lines) == now
}

/// Whether jobs ask for the same: a job stays refused then. What data there is may differ.
fn is_alike(known: &Job, wanted: &Job) -> bool {
    if !known.reads.is_empty() {
        return false;
    }
    let requested = |job: &Job| (job.nodes, job.cores, job.memory, job.gpus, job.limit);
    requested(known) == requested(wanted) && known.on == wanted.on
}
