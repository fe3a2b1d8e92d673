//! The record of a simulation: results of jobs, and an accounting for the auditor.

use super::slurm::EPOCH;
use super::{ClusterError, ClusterResult, ServiceMode, SimulatedCluster};
use std::collections::{BTreeMap, BTreeSet};
use tarn_auditor::{AuditInput, AuditedNode, audit};
use tarn_simulator::site::StreamWay;
use tarn_types::id::NodeId;
use tarn_types::site::result::{MAX_SPANS, ranges};
use tarn_types::site::{
    AccountedJob, AccountedState, Fate, FlowId, JobId, JobResult, Machine, SiteResult, Span,
    SpanOf, UnrunnableJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// The record of a simulation.
#[derive(Debug)]
pub(super) struct ClusterRecord {
    pub(super) result: SiteResult,
    nodes: Vec<Vec<NodeId>>,
    attempts: BTreeMap<u32, Vec<AccountedJob>>,
    /// Watts of all nodes when they are idle.
    idle: f64,
    /// Watts that each draws beyond that when it has a job.
    busy: Vec<f64>,
    pub(super) marks: u64,
    pub(super) begin_times: u64,
    pub(super) restarts: u64,
}

impl ClusterRecord {
    pub(super) fn new(work: &Workload, machine: &Machine) -> Self {
        let islands = machine.islands.iter();
        let idle = islands.map(|i| i.kind.power.idle * f64::from(i.nodes));
        let more = |at: &u16| {
            let power = &machine.islands[usize::from(*at)].kind.power;
            power.busy - power.idle
        };
        Self {
            result: SiteResult {
                jobs: vec![JobResult::default(); work.jobs.len()],
                delivered: vec![None; work.flows.len()],
                ..SiteResult::default()
            },
            nodes: vec![Vec::new(); work.jobs.len()],
            attempts: BTreeMap::new(),
            idle: idle.sum(),
            busy: machine.island_of().iter().map(more).collect(),
            marks: 0,
            begin_times: 0,
            restarts: 0,
        }
    }

    pub(super) fn submitted(&mut self, job: JobId, now: Time) {
        self.result.jobs[job.at()].submitted = now;
        self.result.jobs[job.at()].ready = now;
    }

    /// Nothing but nodes is missing to it.
    pub(super) fn ready(&mut self, job: JobId, now: Time) {
        let of = &mut self.result.jobs[job.at()];
        if of.attempts == 0 {
            of.ready = now;
        }
    }

    pub(super) fn begun(&mut self, job: JobId, nodes: &[usize], now: Time) {
        let of = &mut self.result.jobs[job.at()];
        of.begun = now;
        of.attempts += 1;
        of.io = 0;
        self.nodes[job.at()] = nodes.iter().map(|at| NodeId(*at as u32)).collect();
    }

    /// Its program read or wrote for so long.
    pub(super) fn moved_for(&mut self, job: JobId, time: Nanos) {
        self.result.jobs[job.at()].io += time;
    }

    pub(super) fn released(&mut self, job: JobId, now: Time) {
        let of = &mut self.result.jobs[job.at()];
        of.released = now;
        let held = now.saturating_sub(of.begun);
        of.held += held;
        let nodes = &self.nodes[job.at()];
        of.node_time += held.saturating_mul(nodes.len() as u64);
        let more: f64 = nodes.iter().map(|node| self.busy[node.at()]).sum();
        self.result.energy += more * held as f64 / SECOND as f64;
        self.result.end = self.result.end.max(now);
        let begun = of.begun;
        self.span(job, SpanOf::Held, (begun, now));
    }

    /// Its program begins now.
    pub(super) fn started(&mut self, job: JobId, now: Time) {
        let begun = self.result.jobs[job.at()].begun;
        self.span(job, SpanOf::Idle, (begun, now));
    }

    /// Its program has ended, and its nodes will be free at this time.
    pub(super) fn ended(&mut self, job: JobId, now: Time, free: Time) {
        self.span(job, SpanOf::Idle, (now, free));
    }

    fn span(&mut self, job: JobId, what: fn(JobId) -> SpanOf, (begin, end): (Time, Time)) {
        if self.result.spans.len() < MAX_SPANS {
            let nodes = ranges(&self.nodes[job.at()]);
            self.result.spans.push(Span {
                what: what(job),
                nodes,
                begin,
                end,
            });
        } else {
            self.result.spans_left_out += 1;
        }
    }

    pub(super) fn done(&mut self, job: JobId) {
        self.result.jobs[job.at()].fate = Fate::Done;
    }

    pub(super) fn taken_out(&mut self, job: JobId, why: &str) {
        self.result.jobs[job.at()].fate = Fate::TakenOut;
        let lacks = Some(why.to_owned());
        self.result.refused.push(UnrunnableJob { job, lacks });
    }

    pub(super) fn is_over(&self, job: JobId) -> bool {
        self.result.jobs[job.at()].fate != Fate::Open
    }

    pub(super) fn is_taken_out(&self, job: JobId) -> bool {
        self.result.jobs[job.at()].fate == Fate::TakenOut
    }

    /// A kept item of a workflow is in the external store.
    pub(super) fn delivered(&mut self, flow: FlowId, now: Time) {
        let last = &mut self.result.delivered[flow.at()];
        *last = Some(last.map_or(now, |last| last.max(now)));
        self.result.end = self.result.end.max(now);
    }

    pub(super) fn bytes(&mut self, way: StreamWay, bytes: u64) {
        let sums = &mut self.result.bytes;
        match way {
            StreamWay::In { .. } => sums.external_in += bytes,
            StreamWay::Out { .. } => sums.external_out += bytes,
            StreamWay::Between { .. } => sums.peer += bytes,
            StreamWay::TierRead(_) => sums.retained += bytes,
            StreamWay::TierWrite(_) => {}
        }
    }
}

impl SimulatedCluster {
    /// An attempt of a job ends: a line of Slurm's accounting.
    pub(super) fn account(&mut self, number: u32, state: AccountedState) {
        let (Some(live), Some(row)) = (
            self.live.get(&number),
            self.slurm.snapshot.jobs.get(&number),
        ) else {
            return;
        };
        let of = &self.record.result.jobs[live.work.at()];
        let job = &self.work.jobs[live.work.at()].job;
        let seconds = |time: Time| Some(EPOCH + time / SECOND);
        let line = AccountedJob {
            number,
            user: row.user,
            partition: row.partitions.join(","),
            qos: row.qos.clone(),
            state,
            submitted: row.submitted,
            eligible: seconds(of.ready),
            start: seconds(of.begun),
            end: seconds(self.now),
            limit: row.limit,
            nodes: row.nodes.clone(),
            wanted: row.min_nodes,
            cpus: row.cpus.into(),
            memory: row.memory,
            gpus: u64::from(job.gpus) * u64::from(job.nodes),
            reservation: row.reservation.clone(),
            is_array_task: false,
        };
        let lines = self.record.attempts.entry(number).or_default();
        lines.push(line);
    }

    pub(super) fn finish(self) -> Result<ClusterResult, ClusterError> {
        let mut result = ClusterResult {
            marks: self.record.marks,
            begin_times: self.record.begin_times,
            restarts: self.record.restarts,
            ..ClusterResult::default()
        };
        if self.settings.mode != ServiceMode::Without {
            let nodes = self.slurm.snapshot.nodes.values().map(|node| {
                let gpus = node.gres.strip_prefix("gpu:").and_then(|n| n.parse().ok());
                let of = AuditedNode {
                    resources: [node.cpus.into(), node.memory, gpus.unwrap_or(0)],
                    partitions: node.partitions.clone(),
                };
                (node.name.clone(), of)
            });
            let nodes: BTreeMap<String, AuditedNode> = nodes.collect();
            let jobs: Vec<AccountedJob> = self.record.attempts.into_values().flatten().collect();
            let with_lines = self.numbers.iter().filter(|(id, _)| {
                let job = &self.work.jobs[id.at()].job;
                self.handed_over.is_of(job)
            });
            let data_jobs: BTreeSet<u32> = with_lines.map(|(_, number)| *number).collect();
            let bound = self.settings.policy.bound / SECOND;
            let report = audit(&AuditInput {
                jobs: &jobs,
                data_jobs: &data_jobs,
                nodes: &nodes,
                bound,
            });
            (result.delays, result.judged) = (report.delay_count, report.judged);
        }
        let mut site = self.record.result;
        site.energy += self.record.idle * site.end as f64 / SECOND as f64;
        // Programs read these on their nodes; those that were brought there for them do not count.
        let bytes = &mut site.bytes;
        bytes.retained = bytes.retained.saturating_sub(bytes.peer);
        (site.tier_peaks, site.tier_peak_all) = self.daemons.peaks();
        result.site = site;
        Ok(result)
    }
}
