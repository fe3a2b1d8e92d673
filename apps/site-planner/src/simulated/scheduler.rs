//! The passes of the simulated Slurm's scheduler: which waiting job begins, and on which nodes. The rules are those of Slurm's `schedule`,
//! `_attempt_backfill` and `_eval_nodes`.

use super::occupancy::{NodeOccupancy, OccupiedTime};
use super::slurm::{EPOCH, JobStage, SimulatedSlurm, SimulatedSlurmJob};
use std::collections::BTreeSet;
use tarn_slurm::{PendingReason, SlurmJob, SlurmJobState};
use tarn_types::units::{Nanos, SECOND, Time};

/// Jobs at which a pass looks (`default_queue_depth`, `bf_max_job_test`).
const MAX_PLANNED: usize = 100;

/// The first window in which running jobs end together for a job that waits.
const END_WINDOW: Nanos = 30 * SECOND;
/// Times from which a round of backfill looks for a job's nodes.
const MAX_WINDOWS: usize = 200;

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
        let mut table = self.timetable();
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
            let Some((begin, nodes)) = self.place(number, now, &table, !is_backfill) else {
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
            if begin == now && stage == JobStage::Staged {
                self.begin(number, nodes, now);
                pass.begun.push(number);
                table.set_running(self);
            } else if begin > now || stage == JobStage::Staging {
                let queued = &self.queued[&number];
                let time = (begin, begin.saturating_add(queued.limit));
                table.planned.take(&nodes, time, queued.share);
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

    fn timetable(&self) -> Timetable {
        let mut table = Timetable {
            running: NodeOccupancy::new(&self.resources),
            ends: Vec::new(),
            planned: NodeOccupancy::new(&self.resources),
        };
        table.set_running(self);
        table
    }

    /// The begin of a job as Slurm expects it, and its nodes then. `None`: never, or with `at_once` not now.
    fn place(
        &self,
        number: u32,
        now: Time,
        table: &Timetable,
        at_once: bool,
    ) -> Option<(Time, Vec<usize>)> {
        let wanted = WantedPlace {
            job: self.snapshot.jobs.get(&number)?,
            queued: self.queued.get(&number)?,
            now,
            at_once,
        };
        let partitions = wanted.job.partitions.iter();
        let places = partitions.filter_map(|partition| self.place_in(partition, &wanted, table));
        places.min_by_key(|(begin, _)| *begin)
    }

    /// Backfill looks at the nodes that no planned job has from a time on, and for when so many of them are free. If that is after the
    /// next planned job's end, it looks again from there.
    fn place_in(
        &self,
        partition: &str,
        wanted: &WantedPlace<'_>,
        table: &Timetable,
    ) -> Option<(Time, Vec<usize>)> {
        let WantedPlace { job, queued, .. } = wanted;
        let window = |begin: Time| OccupiedTime {
            begin,
            end: begin.saturating_add(queued.limit),
            share: queued.share,
        };
        let mut from = wanted.now;
        for _ in 0..MAX_WINDOWS {
            let free = self.free_nodes(job, partition, &window(from), &table.planned);
            let reserved = self.reserved_until.values().copied();
            let ends = table.planned.ends().chain(reserved);
            let mut later = ends.filter(|end| *end > from).min();
            if let Some((begin, nodes)) = self.expected_begin(wanted, &free, table) {
                let begin = begin.max(from);
                let is_free = |at: &usize| table.planned.fits(*at, &window(begin));
                if !nodes.iter().all(is_free) {
                    later = Some(begin.max(from + SECOND));
                } else if later.is_none_or(|later| begin <= later) {
                    return Some((begin, nodes));
                }
            }
            if wanted.at_once {
                return None;
            }
            from = later?;
        }
        None
    }

    /// When enough of these nodes are free (`_will_run_test` of select/cons_tres): Slurm lets running jobs end in the order of their limits,
    /// all those together whose limits lie in one window of time, which grows.
    fn expected_begin(
        &self,
        wanted: &WantedPlace<'_>,
        free: &[usize],
        table: &Timetable,
    ) -> Option<(Time, Vec<usize>)> {
        let (job, now) = (wanted.job, wanted.now);
        let wants = job.min_nodes as usize;
        if free.len() < wants {
            return None;
        }
        let idle_after = |ended: usize| -> Vec<usize> {
            let rank = OccupiedTime {
                begin: ended as Time,
                end: ended as Time + 1,
                share: wanted.queued.share,
            };
            let idle = free.iter().copied();
            idle.filter(|at| table.running.fits(*at, &rank)).collect()
        };
        let idle = idle_after(0);
        if idle.len() >= wants {
            // A preference counts for a begin now, and for all nodes or none.
            let preferred: BTreeSet<&str> = job.preferred.split('|').collect();
            let is_preferred = |at: &usize| preferred.contains(&self.names[*at][..]);
            let best: Vec<usize> = idle.iter().copied().filter(is_preferred).collect();
            let idle = if best.len() >= wants { best } else { idle };
            return Some((now, self.chosen(job, idle)));
        }
        if wanted.at_once {
            return None;
        }
        let ends = &table.ends;
        let is_of_use = |(_, nodes): &(Time, Vec<usize>)| nodes.iter().any(|at| free.contains(at));
        let (mut window, mut barrier, mut next) = (END_WINDOW, None, 0);
        while next < ends.len() {
            let mut last = None;
            while let Some(end) = ends.get(next) {
                next += 1;
                if !is_of_use(end) {
                    continue;
                }
                last = Some(next - 1);
                // To the next full window.
                let barrier = *barrier.get_or_insert((end.0 / END_WINDOW + 1) * END_WINDOW);
                if ends.get(next).is_some_and(|end| end.0 > barrier + window) {
                    break;
                }
            }
            let (Some(last), Some(barrier)) = (last, barrier) else {
                break;
            };
            window *= 2;
            while ends.get(next).is_some_and(|end| end.0 > barrier + window) {
                window *= 2;
            }
            let idle = idle_after(last + 1);
            if idle.len() >= wants {
                // One beyond its limit is about to end.
                let begin = ends[last].0.max(now + SECOND);
                return Some((begin, self.chosen(job, idle)));
            }
        }
        None
    }

    /// Of its reservation's nodes as many as there are, others only beside them (R4).
    fn chosen(&self, job: &SlurmJob, free: Vec<usize>) -> Vec<usize> {
        let reserved = self.snapshot.reservations.get(&job.reservation);
        let is_own = |at: &usize| reserved.is_some_and(|r| r.nodes.contains(&self.names[*at]));
        let wants = job.min_nodes as usize;
        let (own, others): (Vec<usize>, Vec<usize>) = free.into_iter().partition(is_own);
        let mut nodes = best_fit(&own, wants);
        nodes.extend(best_fit(&others, wants - nodes.len()));
        nodes
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

/// A job for which nodes are looked for.
struct WantedPlace<'j> {
    job: &'j SlurmJob,
    queued: &'j SimulatedSlurmJob,
    now: Time,
    /// The main scheduler looks for a begin now alone.
    at_once: bool,
}

/// The jobs of all nodes, as a pass sees them.
struct Timetable {
    /// Running jobs. The times are ranks: a job has its nodes until its own place in the order of ends.
    running: NodeOccupancy,
    /// When each of them ends by its limit, in that order, and its nodes.
    ends: Vec<(Time, Vec<usize>)>,
    planned: NodeOccupancy,
}

impl Timetable {
    fn set_running(&mut self, slurm: &SimulatedSlurm) {
        let running = slurm.queued.values().filter(|q| !q.nodes.is_empty());
        // Slurm's times are whole seconds.
        let end = |q: &SimulatedSlurmJob| (q.started / SECOND * SECOND).saturating_add(q.limit);
        let mut running: Vec<(Time, &SimulatedSlurmJob)> = running.map(|q| (end(q), q)).collect();
        running.sort_by_key(|(end, _)| *end);
        self.running = NodeOccupancy::new(&slurm.resources);
        for (rank, (_, queued)) in (1..).zip(&running) {
            self.running.take(&queued.nodes, (0, rank), queued.share);
        }
        let ends = running.into_iter().map(|(end, q)| (end, q.nodes.clone()));
        self.ends = ends.collect();
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
