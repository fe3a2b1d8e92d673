//! The twin: machine and workload.

use crate::data::TwinData;
use crate::history::{JobDataHistory, PastJob, SiteHistory};
use crate::machine::{TwinPlaces, machine_of};
use crate::order::{OrderedJob, in_order, reaction};
use std::collections::HashMap;
use std::sync::Arc;
use tarn_types::site::{
    Fate, FlowId, Job, JobResult, Machine, RecordedWorkload, SiteResult, Submit, WorkJob, Workload,
};
use tarn_types::units::{Nanos, SECOND, Time};

/// The shortest limit of a job.
const LEAST_LIMIT: Nanos = SECOND;
/// Slurm's reservations begin and end at full minutes: so does the twin's time.
const PHASE: Time = 60 * SECOND;
/// Without anything else, a user's limit is so many times what the job takes.
const LIMIT_FACTOR: u64 = 2;

/// A site's twin.
#[derive(Debug, Clone)]
pub struct SiteTwin {
    /// The machine.
    pub machine: Machine,
    /// The jobs that ran, and their outcome. Its time 0 is the begin of the minute of the first arrival.
    pub recorded: RecordedWorkload,
    /// How long after an event the site's scheduler gave nodes to a job: a part of each job's run time.
    pub reaction: Nanos,
    /// Assumptions and omissions, as sentences without names.
    pub notes: Vec<String>,
}

/// The twin of a site with this history.
///
/// # Examples
/// ```
/// use tarn_twin::{NodeHistory, PastJob, SiteHistory, twin};
///
/// let node = NodeHistory {
///     cores: 8, memory: 1 << 30, gpus: 0, partitions: vec![], stores: vec![], power: Default::default(),
/// };
/// let job = PastJob { eligible: 5, begun: 5, ended: 9, nodes: vec![0], ..PastJob::default() };
/// let history = SiteHistory { nodes: vec![node; 4], jobs: vec![job], ..SiteHistory::default() };
/// let twin = twin(&history);
/// assert_eq!(twin.machine.nodes(), 4);
/// assert_eq!(twin.recorded.workload.jobs[0].compute, 4);
/// ```
pub fn twin(history: &SiteHistory) -> SiteTwin {
    let mut notes = Vec::new();
    let (jobs, left_out) = in_order(history);
    if left_out > 0 {
        notes.push(format!(
            "{left_out} jobs are left out: they had no nodes that are known, or are too many"
        ));
    }
    let (machine, places) = machine_of(history, &mut notes);
    let origin = jobs.first().map_or(0, |o| o.at - o.at % PHASE);
    let mut builder = TwinBuilder {
        history,
        origin,
        reaction: reaction(&jobs),
        places,
        data: TwinData::new(&jobs),
        users: HashMap::new(),
        recorded: RecordedWorkload::default(),
    };
    for ordered in &jobs {
        builder.add(ordered);
    }
    let before = builder.data.from_before.len();
    if before > 0 {
        notes.push(format!(
            "{before} versions were made before, outside, or by another workflow: they are in the external store"
        ));
    }
    let reaction = builder.reaction;
    SiteTwin {
        machine,
        recorded: builder.finish(),
        reaction,
        notes,
    }
}

struct TwinBuilder<'h> {
    history: &'h SiteHistory,
    origin: Time,
    reaction: Nanos,
    places: TwinPlaces,
    data: TwinData<'h>,
    users: HashMap<u32, u32>,
    recorded: RecordedWorkload,
}

impl<'h> TwinBuilder<'h> {
    fn since(&self, time: Time) -> Time {
        time.saturating_sub(self.origin)
    }

    fn add(&mut self, ordered: &OrderedJob<'h>) {
        let past = ordered.job;
        let at = self.since(ordered.at);
        let held = past.ended - past.begun;
        let staged = past.data.as_ref().map_or(0, |d| d.staged.min(held));
        let compute = (held - staged).saturating_add(self.reaction);
        let mut limit = past.limit;
        if limit == 0 {
            limit = held.saturating_mul(LIMIT_FACTOR);
        }
        let limit = limit.max(LEAST_LIMIT);
        let mut job = Job {
            flow: None,
            nodes: past.nodes.len() as u32,
            cores: past.cores,
            memory: past.memory,
            gpus: past.gpus,
            mode: None,
            limit,
            expect: limit / LIMIT_FACTOR,
            after: Vec::new(),
            continues: None,
            reads: Vec::new(),
            writes: Vec::new(),
            submitted: None,
            place: None,
            on: self.places.allowed(past.partition),
            not_before: 0,
        };
        if let Some(data) = &past.data {
            self.add_data(&mut job, data, at);
        }
        let next = self.users.len() as u32;
        let user = *self.users.entry(past.user).or_insert(next);
        self.recorded.users.push(user);
        let result = self.result_of(past, at, staged);
        let released = result.released;
        self.recorded.result.end = self.recorded.result.end.max(released);
        self.recorded.result.jobs.push(result);
        self.recorded.workload.jobs.push(WorkJob {
            job: Arc::new(job),
            name: "".into(),
            submit: Submit::At(at),
            compute,
        });
    }

    fn add_data(&mut self, job: &mut Job, data: &'h JobDataHistory, at: Time) {
        let flow = self.data.flow(&data.workflow, at);
        job.flow = Some(flow);
        for used in &data.reads {
            let input = self.data.input(flow, &data.workflow, used);
            if !job.reads.iter().any(|known| known.item == input.item) {
                job.reads.push(input);
            }
        }
        for used in &data.writes {
            job.writes.extend(self.data.output(flow, used));
        }
        let bytes = &mut self.recorded.result.bytes;
        bytes.external_in = bytes.external_in.saturating_add(data.bytes.external_in);
        bytes.external_out = bytes.external_out.saturating_add(data.bytes.external_out);
        bytes.peer = bytes.peer.saturating_add(data.bytes.peer);
        bytes.retained = bytes.retained.saturating_add(data.bytes.retained);
        if let Some(delivered) = data.delivered {
            self.deliver(flow, self.since(delivered));
        }
    }

    fn deliver(&mut self, flow: FlowId, at: Time) {
        if let Some(last) = self.data.delivered.get_mut(flow.at()) {
            *last = Some(last.unwrap_or(0).max(at));
        }
        let end = &mut self.recorded.result.end;
        *end = (*end).max(at);
    }

    /// The outcome of a job. It was ready when it came, or when the last of those that it waited for had ended.
    fn result_of(&self, past: &PastJob, at: Time, staged: Nanos) -> JobResult {
        let (begun, released) = (self.since(past.begun), self.since(past.ended));
        let held = released.saturating_sub(begun);
        let makers = past.data.iter().flat_map(|d| &d.reads);
        let eligible = match makers.count() {
            0 => at,
            _ => self.since(past.eligible),
        };
        let share = |n: &u32| {
            let all = self.history.nodes.get(*n as usize).map_or(1, |n| n.cores);
            let mine = if past.cores == 0 { all } else { past.cores };
            u128::from(held) * u128::from(mine.min(all)) / u128::from(all.max(1))
        };
        let node_time: u128 = past.nodes.iter().map(share).sum();
        JobResult {
            submitted: at,
            ready: eligible.max(at).min(begun),
            begun,
            released,
            held,
            io: staged,
            node_time: u64::try_from(node_time).unwrap_or(u64::MAX),
            attempts: 1,
            fate: Fate::Done,
        }
    }

    fn finish(mut self) -> RecordedWorkload {
        self.recorded.workload = Workload {
            jobs: std::mem::take(&mut self.recorded.workload.jobs),
            items: self.data.items,
            flows: self.data.flows,
            skipped: Vec::new(),
        };
        self.recorded.result = SiteResult {
            delivered: self.data.delivered,
            energy: self.history.joules as f64,
            ..self.recorded.result
        };
        self.recorded
    }
}
