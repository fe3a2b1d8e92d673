//! The passes of the simulated Slurm's scheduler: which waiting job begins, and on which nodes. The rules are those of Slurm's `schedule`,
//! `_attempt_backfill` and `_eval_nodes`.

use super::occupancy::{NodeOccupancy, OccupiedTime};
use super::slurm::{EPOCH, JobStage, SimulatedSlurm};
use std::collections::BTreeSet;
use tarn_slurm::{PendingReason, SlurmJob, SlurmJobState};
use tarn_types::units::{SECOND, Time};

/// Jobs at which a pass looks (`default_queue_depth`, `bf_max_job_test`).
const MAX_PLANNED: usize = 100;

/// The outcome of a pass.
#[derive(Debug, Default)]
pub(crate) struct SchedulerPass {
    /// Jobs that it gave nodes.
    pub(crate) begun: Vec<u32>,
    /// Jobs that it looked at and whose `setup` was not called before: it is called now.
    pub(crate) called: Vec<u32>,
}

impl SimulatedSlurm {
    /// A pass of the scheduler. The main scheduler goes down the queue until a job finds no nodes; backfill gives each job behind it a
    /// reservation, and begins those for which that is now. Both pass over a job whose data is not staged. The main scheduler does not look
    /// for its nodes; backfill keeps them for it, but those that it could have at once only after its `setup` was called.
    pub(crate) fn schedule(&mut self, now: Time, is_backfill: bool) -> SchedulerPass {
        let mut occupancy = self.occupancy(now);
        let seconds = EPOCH + now / SECOND;
        for job in self.snapshot.jobs.values_mut() {
            let is_later = job.eligible.is_some_and(|at| at > seconds);
            let waits = job.state == SlurmJobState::Pending && job.dependency.is_empty();
            if waits && is_later {
                job.reason = PendingReason::BeginTime;
            }
        }
        let mut order: Vec<(bool, u32)> = self
            .snapshot
            .jobs
            .values()
            .filter(|job| job.state == SlurmJobState::Pending && job.dependency.is_empty())
            .filter(|job| job.eligible.is_none_or(|at| at <= seconds))
            .map(|job| (job.reservation.is_empty(), job.number))
            .collect();
        order.sort_unstable();
        let mut pass = SchedulerPass::default();
        let mut is_first = true;
        for (_, number) in order.into_iter().take(MAX_PLANNED) {
            let Some(stage) = self.queued.get(&number).map(|queued| queued.stage) else {
                continue;
            };
            if stage == JobStage::Uncalled {
                pass.called.push(number);
            }
            if stage != JobStage::Staged && !is_backfill {
                continue;
            }
            let Some((begin, nodes)) = self.place(number, now, &occupancy, !is_backfill) else {
                self.note_waiting(number, is_first, None);
                if is_backfill {
                    continue;
                }
                return pass;
            };
            if begin > now {
                self.note_waiting(number, is_first, Some(begin));
            }
            is_first = false;
            if begin > now && !is_backfill {
                return pass;
            }
            if begin == now && stage == JobStage::Uncalled {
                continue;
            }
            let queued = &self.queued[&number];
            occupancy.take(&nodes, (begin, begin + queued.limit), queued.share);
            if begin == now && stage == JobStage::Staged {
                self.begin(number, nodes, now);
                pass.begun.push(number);
            }
        }
        pass
    }

    fn note_waiting(&mut self, number: u32, is_first: bool, begin: Option<Time>) {
        if let Some(job) = self.snapshot.jobs.get_mut(&number) {
            job.reason = match is_first {
                true => PendingReason::Resources,
                false => PendingReason::Priority,
            };
            job.start = begin.map(|begin| EPOCH + begin / SECOND);
        }
    }

    fn occupancy(&self, now: Time) -> NodeOccupancy {
        let mut occupancy = NodeOccupancy::new(&self.resources);
        for queued in self.queued.values().filter(|q| !q.nodes.is_empty()) {
            // One beyond its limit is about to end.
            let until = queued.started.saturating_add(queued.limit).max(now + 1);
            occupancy.take(&queued.nodes, (queued.started, until), queued.share);
        }
        occupancy
    }

    /// The earliest begin of a job, and its nodes then. `None`: never, or with `at_once` not now.
    fn place(
        &self,
        number: u32,
        now: Time,
        occupancy: &NodeOccupancy,
        at_once: bool,
    ) -> Option<(Time, Vec<usize>)> {
        let (job, queued) = (self.snapshot.jobs.get(&number)?, self.queued.get(&number)?);
        let mut times = vec![now];
        if !at_once {
            times.extend(occupancy.ends().filter(|end| *end > now));
            times.extend(self.reserved_until.values().filter(|end| **end > now));
            times.sort_unstable();
            times.dedup();
        }
        let preferred: BTreeSet<&str> = job.preferred.split('|').collect();
        let is_preferred = |at: &usize| preferred.contains(&self.names[*at][..]);
        let reserved = self.snapshot.reservations.get(&job.reservation);
        let is_own = |at: &usize| reserved.is_some_and(|r| r.nodes.contains(&self.names[*at]));
        for begin in times {
            let window = OccupiedTime {
                begin,
                end: begin.saturating_add(queued.limit),
                share: queued.share,
            };
            for partition in &job.partitions {
                let mut free = self.free_nodes(job, partition, &window, occupancy);
                let wants = job.min_nodes as usize;
                if begin == now {
                    // A preference counts for a begin now, and for all nodes or none.
                    let best: Vec<usize> = free.iter().copied().filter(is_preferred).collect();
                    if best.len() >= wants {
                        free = best;
                    }
                }
                if free.len() >= wants {
                    // Of its reservation's nodes as many as there are, others only beside them (R4).
                    let (own, others): (Vec<usize>, Vec<usize>) =
                        free.into_iter().partition(is_own);
                    let mut nodes = best_fit(&own, wants);
                    nodes.extend(best_fit(&others, wants - nodes.len()));
                    return Some((begin, nodes));
                }
            }
        }
        None
    }

    fn free_nodes(
        &self,
        job: &SlurmJob,
        partition: &str,
        window: &OccupiedTime,
        occupancy: &NodeOccupancy,
    ) -> Vec<usize> {
        let blocked: BTreeSet<&String> = self
            .snapshot
            .reservations
            .values()
            .filter(|r| r.name != job.reservation && self.reserved_until[&r.name] > window.begin)
            .flat_map(|r| r.nodes.iter())
            .collect();
        let in_partition = self.snapshot.partitions.get(partition).into_iter();
        let nodes = in_partition.flat_map(|p| p.nodes.iter()).filter(|name| {
            !blocked.contains(name)
                && !job.excluded.contains(name)
                && (job.required.is_empty() || job.required.contains(name))
        });
        nodes
            .filter_map(|name| self.number_of(name))
            .filter(|at| !self.down.contains(at) && occupancy.fits(*at, window))
            .collect()
    }
}

/// Of these nodes, in ascending order, so many as Slurm would take (`_eval_nodes` of select/cons_tres): of the shortest row of neighbours
/// that is long enough, else all of the longest one, and so on.
fn best_fit(free: &[usize], wants: usize) -> Vec<usize> {
    let mut rows: Vec<&[usize]> = free.chunk_by(|a, b| a + 1 == *b).collect();
    let mut nodes = Vec::new();
    while nodes.len() < wants && !rows.is_empty() {
        let missing = wants - nodes.len();
        let enough = rows.iter().enumerate();
        let enough = enough.filter(|(_, row)| row.len() >= missing);
        let shortest = enough.min_by_key(|(at, row)| (row.len(), *at));
        let all = rows.iter().enumerate();
        let longest = || all.max_by_key(|(at, row)| (row.len(), std::cmp::Reverse(*at)));
        let Some(at) = shortest.or_else(longest).map(|(at, _)| at) else {
            break;
        };
        let row = rows.remove(at);
        nodes.extend(&row[..missing.min(row.len())]);
    }
    nodes.truncate(wants);
    nodes
}
