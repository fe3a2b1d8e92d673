//! Jobs: submitted, allocated, run, released, taken out.

use super::space::ItemDistribution;
use super::{ScheduledSiteEvent, SimulatedSite, plumbing};
use tarn_ports::WorldError;
use tarn_types::id::NodeId;
use tarn_types::site::{Fate, ItemId, JobId, JobNodes, Rates, SiteEvent, SpanOf, Spread};
use tarn_types::units::{Nanos, SECOND, Time};

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SimulatedJobPhase {
    /// Not submitted.
    #[default]
    Unknown,
    Waiting,
    /// It has its nodes and has not run.
    Held,
    Running,
    /// Its program has ended; it has its nodes.
    Ended {
        ok: bool,
    },
    Done,
    TakenOut,
}

/// A job.
#[derive(Debug, Default)]
pub(super) struct JobSlot {
    pub(super) phase: SimulatedJobPhase,
    /// While it has nodes.
    pub(super) live: Option<Box<AllocatedJob>>,
}

/// A job that has nodes.
#[derive(Debug)]
pub(super) struct AllocatedJob {
    pub(super) nodes: JobNodes,
    since: Time,
    program: Option<RunningProgram>,
    /// It writes to its tiers: space for that is taken.
    pub(super) writes: bool,
    /// Moves under way that it waits for, since when there is at least one, and how long there was before.
    pub(super) moves: u32,
    moves_since: Time,
    moved_for: Nanos,
    /// How long its program read and wrote the tiers.
    local: Nanos,
    /// Node-time that jobs which continue it had.
    exported: Nanos,
}

/// A program that runs.
#[derive(Debug)]
struct RunningProgram {
    /// The number of the event that ends it.
    end: u64,
    began: Time,
    ok: bool,
}

/// How to run a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobRunSpec {
    pub(super) attempt: u32,
    pub(super) local_read: u64,
    pub(super) local_write: u64,
    pub(super) to_tiers: bool,
}

/// Time for bytes at a rate in bytes a second, 0 for no limit.
fn time_for(bytes: u64, rate: u64, nodes: u64) -> Nanos {
    let each_second = u128::from(rate) * u128::from(nodes);
    let nanos = (u128::from(bytes) * u128::from(SECOND)).checked_div(each_second);
    nanos.map_or(0, |n| u64::try_from(n).unwrap_or(Nanos::MAX))
}

impl SimulatedSite {
    pub(super) fn phase(&self, job: JobId) -> Option<SimulatedJobPhase> {
        self.jobs.get(job.at()).map(|j| j.phase)
    }

    pub(super) fn submit(&mut self, jobs: &[JobId]) {
        for job in jobs {
            self.jobs[job.at()].phase = SimulatedJobPhase::Waiting;
            self.record.job(*job).submitted = self.now;
            self.open += 1;
        }
    }

    /// When all that a job waits for had ended.
    fn ready_since(&self, job: JobId) -> Time {
        let spec = &self.work.jobs[job.at()].job;
        let reads = spec
            .reads
            .iter()
            .filter_map(|r| self.producers[r.item.at()]);
        let before = reads.chain(spec.after.iter().copied());
        let ends = before.map(|j| self.record.result.jobs[j.at()].released);
        let submitted = self.record.result.jobs[job.at()].submitted;
        ends.fold(submitted, Time::max)
    }

    /// Cores of an island that a job has, all its nodes together.
    fn cores(&self, job: JobId, nodes: &[NodeId]) -> (u16, u64, u32) {
        let Some(first) = nodes.first() else {
            return (0, 0, 1);
        };
        let all = self.kind(*first).cores.max(1);
        let each = match self.work.jobs[job.at()].job.cores {
            0 => all,
            cores => cores.min(all),
        };
        let cores = u64::from(each) * nodes.len() as u64;
        (self.island_of[first.at()], cores, all)
    }

    pub(super) fn allocate(&mut self, job: JobId, nodes: &JobNodes) -> Result<(), WorldError> {
        let phase = self.phase(job);
        let Some(SimulatedJobPhase::Waiting | SimulatedJobPhase::Done) = phase else {
            return self.refuse(format!(
                "allocates job {job}, which does not wait but is {phase:?}"
            ));
        };
        let wanted = self.work.jobs[job.at()].job.nodes;
        if nodes.len() != wanted as usize || !self.are_there(nodes) {
            return self.refuse(format!(
                "allocates {} nodes to job {job}, which asks for {wanted}, or nodes that are not there",
                nodes.len()
            ));
        }
        // A job that was done runs again for lost data.
        self.open += usize::from(phase == Some(SimulatedJobPhase::Done));
        let ready = self.ready_since(job);
        let now = self.now;
        let record = self.record.job(job);
        (record.ready, record.begun, record.io) = (ready.min(now), now, 0);
        record.attempts += 1;
        self.jobs[job.at()].phase = SimulatedJobPhase::Held;
        self.jobs[job.at()].live = Some(Box::new(AllocatedJob {
            nodes: nodes.clone(),
            since: now,
            program: None,
            writes: false,
            moves: 0,
            moves_since: now,
            moved_for: 0,
            local: 0,
            exported: 0,
        }));
        Ok(())
    }

    pub(super) fn are_there(&self, nodes: &[NodeId]) -> bool {
        !nodes.is_empty() && nodes.iter().all(|n| n.at() < self.nodes.len())
    }

    pub(super) fn run(&mut self, job: JobId, run: JobRunSpec) -> Result<(), WorldError> {
        let phase = self.phase(job);
        let Some(SimulatedJobPhase::Held | SimulatedJobPhase::Ended { ok: false }) = phase else {
            return self.refuse(format!(
                "runs job {job}, which is not ready on its nodes but {phase:?}"
            ));
        };
        let Some(nodes) = self.nodes_of(job) else {
            return self.refuse(format!("runs job {job}, which has no nodes"));
        };
        if run.to_tiers {
            self.each_written(job, &nodes, |site, item, layout| {
                site.space.take(item, layout)
            });
        }
        let count = nodes.len() as u64;
        let tier = self.tier_rates(&nodes);
        let written = self.true_write(job, run.local_write);
        let local = time_for(run.local_read, tier.read, count)
            .saturating_add(time_for(written, tier.write, count));
        let mut takes = self.work.jobs[job.at()].compute.saturating_add(local);
        let fails = self.faults.of_job(self.now, job, run.attempt);
        if let Some(share) = fails {
            takes = (takes as f64 * share) as Nanos;
        }
        let end = self.at(self.now.saturating_add(takes), ScheduledSiteEvent::End(job));
        let (island, cores, _) = self.cores(job, &nodes);
        self.record.meter.begin(self.now, island, cores);
        let slot = &mut self.jobs[job.at()];
        slot.phase = SimulatedJobPhase::Running;
        if let Some(live) = &mut slot.live {
            live.writes = run.to_tiers;
            live.local = local;
            live.program = Some(RunningProgram {
                end,
                began: self.now,
                ok: fails.is_none(),
            });
        }
        Ok(())
    }

    pub(super) fn nodes_of(&self, job: JobId) -> Option<JobNodes> {
        let live = self.jobs.get(job.at())?.live.as_ref();
        live.map(|l| l.nodes.clone())
    }

    fn each_written(
        &mut self,
        job: JobId,
        nodes: &JobNodes,
        mut f: impl FnMut(&mut Self, ItemId, &ItemDistribution),
    ) {
        let layout = ItemDistribution::new(nodes, Spread::Share);
        let work = self.work.clone();
        for item in &work.jobs[job.at()].job.writes {
            f(self, *item, &layout);
        }
    }

    /// The bytes that a program really writes if the planner, by the sizes it knows, expects so many.
    fn true_write(&self, job: JobId, expected: u64) -> u64 {
        let writes = &self.work.jobs[job.at()].job.writes;
        let sum = |size: &dyn Fn(&ItemId) -> u64| writes.iter().map(|i| u128::from(size(i))).sum();
        let known: u128 = sum(&|i| self.space.bytes(*i));
        let really: u128 = sum(&|i| self.work.items[i.at()].bytes);
        let scaled = (u128::from(expected) * really).checked_div(known);
        scaled.map_or(expected, |s| u64::try_from(s).unwrap_or(u64::MAX))
    }

    /// A program ends by itself.
    pub(super) fn program_ends(&mut self, job: JobId, number: u64) -> Option<SiteEvent> {
        let live = self.jobs[job.at()].live.as_ref()?;
        let program = live.program.as_ref().filter(|p| p.end == number)?;
        let ok = program.ok;
        let sizes = self.stop_program(job, ok);
        Some(SiteEvent::Ended { job, ok, sizes })
    }

    /// A program ends. Returns the true sizes of its outputs, where they were not known.
    pub(super) fn stop_program(&mut self, job: JobId, ok: bool) -> Vec<(ItemId, u64)> {
        let slot = &mut self.jobs[job.at()];
        let ran = slot.phase == SimulatedJobPhase::Running;
        slot.phase = SimulatedJobPhase::Ended { ok };
        let Some(live) = slot.live.as_mut().filter(|_| ran) else {
            return Vec::new();
        };
        let (program, writes, nodes) = (live.program.take(), live.writes, live.nodes.clone());
        let began = program.map_or(self.now, |p| p.began);
        let (island, cores, _) = self.cores(job, &nodes);
        self.record.meter.end(self.now, island, cores);
        self.record.span(SpanOf::Run(job), &nodes, began, self.now);
        let mut sizes = Vec::new();
        self.each_written(job, &nodes, |site, item, layout| {
            if writes {
                site.space.give_back(item, layout);
            }
            let bytes = site.work.items[item.at()].bytes;
            if ok && bytes != site.space.bytes(item) {
                site.space.set_bytes(item, bytes);
                sizes.push((item, bytes));
            }
            if ok && writes {
                site.space.take(item, layout);
                site.space.settle(item, layout.clone());
            }
        });
        sizes
    }

    pub(super) fn release(&mut self, job: JobId) -> Result<(), WorldError> {
        let phase = self.phase(job);
        let Some(SimulatedJobPhase::Held | SimulatedJobPhase::Ended { .. }) = phase else {
            return self.refuse(format!(
                "releases job {job}, which has no nodes to give or runs: it is {phase:?}"
            ));
        };
        self.hold_ends(job);
        let ok = phase == Some(SimulatedJobPhase::Ended { ok: true });
        self.jobs[job.at()].phase = if ok {
            SimulatedJobPhase::Done
        } else {
            SimulatedJobPhase::Waiting
        };
        if !ok {
            return Ok(());
        }
        self.open -= 1;
        let now = self.now;
        let record = self.record.job(job);
        record.released = now;
        let first = std::mem::replace(&mut record.fate, Fate::Done) != Fate::Done;
        self.record.ends(now);
        if first {
            let work = self.work.clone();
            self.arrivals.done(&work, job);
        }
        Ok(())
    }

    /// A job has no nodes any more.
    fn hold_ends(&mut self, job: JobId) {
        let Some(live) = self.jobs[job.at()].live.take() else {
            return;
        };
        let held = self.now - live.since;
        let (_, cores, all) = self.cores(job, &live.nodes);
        let whole = u128::from(held) * u128::from(cores) / u128::from(all);
        let whole = u64::try_from(whole).unwrap_or(u64::MAX);
        let owner = self.owner(job).map(|o| &mut self.jobs[o.at()]);
        if let Some(owner) = owner.and_then(|o| o.live.as_mut()) {
            owner.exported += whole;
        }
        let record = self.record.job(job);
        record.held += held;
        record.node_time += whole.saturating_sub(live.exported);
        record.io = live.moved_for + live.local;
        record.released = self.now;
        self.record
            .span(SpanOf::Held(job), &live.nodes, live.since, self.now);
    }

    /// The job whose allocation another one continues in.
    fn owner(&self, job: JobId) -> Option<JobId> {
        let mut owner = None;
        let mut next = self.work.jobs[job.at()].job.continues;
        // A chain has no more links than there are jobs, even if it bites its own tail.
        for _ in 0..self.work.jobs.len() {
            let Some(before) = next else {
                break;
            };
            owner = Some(before);
            next = self.work.jobs[before.at()].job.continues;
        }
        owner
    }

    /// A move begins for which a job waits on its nodes.
    pub(super) fn io_begins(&mut self, job: JobId) {
        let now = self.now;
        if let Some(live) = &mut self.jobs[job.at()].live {
            if live.moves == 0 {
                live.moves_since = now;
            }
            live.moves += 1;
        }
    }

    /// It ends.
    pub(super) fn io_ends(&mut self, job: JobId) {
        let slot = &mut self.jobs[job.at()];
        let Some(live) = slot.live.as_mut().filter(|l| l.moves > 0) else {
            return;
        };
        live.moves -= 1;
        if live.moves > 0 {
            return;
        }
        let (begin, nodes) = (live.moves_since, live.nodes.clone());
        live.moved_for += self.now - begin;
        let what = match slot.phase {
            SimulatedJobPhase::Held => SpanOf::StageIn(job),
            _ => SpanOf::StageOut(job),
        };
        self.record.span(what, &nodes, begin, self.now);
    }

    /// The rates of the slowest tier that the fullest of some nodes uses.
    pub(super) fn tier_rates(&self, nodes: &[NodeId]) -> Rates {
        let Some(first) = nodes.first() else {
            return Rates::default();
        };
        let mode = self.nodes[first.at()].mode;
        plumbing::tier_rates(self.kind(*first), mode, self.space.fullest(nodes))
    }
}
