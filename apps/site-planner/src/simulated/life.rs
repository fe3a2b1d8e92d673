//! The life of a job: submission, the stages that Slurm calls, its program, and its end.

use super::live::{LiveJob, LivePhase};
use super::scripts::{dataset_name, user_of, workflow_name};
use super::slurm::{Dependencies, JobStage};
use super::world::{SimulatedCluster, StreamPurpose};
use super::{ClusterError, Due, ServiceMode};
use std::collections::BTreeSet;
use tarn_proto::site::Stage;
use tarn_simulator::site::{MachineStream, StreamWay};
use tarn_slurm::SlurmJobState;
use tarn_types::id::NodeId;
use tarn_types::site::{AccountedState, ItemId, Job, JobId, Spread, Submit};

impl SimulatedCluster {
    pub(super) fn is_at(&self, job: u32, attempt: u32) -> bool {
        self.live.get(&job).is_some_and(|l| l.attempt == attempt)
    }

    pub(super) fn attempt_of(&self, job: u32) -> u32 {
        self.live.get(&job).map_or(0, |live| live.attempt)
    }

    fn spec(&self, work: JobId) -> std::sync::Arc<Job> {
        self.work.jobs[work.at()].job.clone()
    }

    pub(super) fn submit(&mut self, work: JobId) {
        let job = self.spec(work);
        self.record.submitted(work, self.now);
        if !self.can_run(&job) {
            self.take_out_unsubmitted(work, "no island has nodes with as much as it asks for");
            return;
        }
        let has_lines = self.handed_over.is_of(&job);
        let mut before: BTreeSet<JobId> = job.after.iter().copied().collect();
        // With preferences tarn has Slurm make jobs wait for their data; without, their users do.
        let by_user = self.settings.mode <= ServiceMode::Observe;
        if by_user || !has_lines {
            before.extend(self.handed_over.makers_of(&job));
        } else {
            let makers = self.handed_over.makers_of(&job);
            let outside = |maker: &JobId| !self.handed_over.is_of(&self.spec(*maker));
            before.extend(makers.into_iter().filter(outside));
        }
        let lost = before.iter().any(|id| self.record.is_taken_out(*id));
        if lost {
            self.take_out_unsubmitted(work, "a job that it waits for was taken out");
            return;
        }
        let before: Vec<u32> = before
            .iter()
            .filter_map(|id| self.numbers.get(id).copied())
            .collect();
        let user = user_of(&job);
        let number = self.slurm.submit(self.now, &job, user, has_lines, &before);
        self.numbers.insert(work, number);
        let live = LiveJob {
            work,
            has_lines,
            attempt: 0,
            phase: LivePhase::Waits,
            streams: BTreeSet::new(),
            since: self.now,
        };
        self.live.insert(number, live);
        self.become_eligible(number);
        if has_lines {
            // Slurm notifies the controller of a job with lines.
            self.request_reading();
        }
    }

    fn can_run(&self, job: &Job) -> bool {
        self.machine.islands.iter().any(|island| {
            let kind = &island.kind;
            let has_share =
                job.cores <= kind.cores && job.memory <= kind.memory && job.gpus <= kind.gpus;
            island.nodes >= job.nodes && has_share
        })
    }

    /// If nothing but nodes is missing to a job, Slurm sets it up or may start it.
    pub(super) fn become_eligible(&mut self, number: u32) {
        match self.slurm.settle_dependencies(number, self.now) {
            Dependencies::Open => {}
            Dependencies::Never => self.give_up(number, "a job that it waits for failed"),
            Dependencies::Satisfied => {
                if let Some(live) = self.live.get(&number) {
                    self.record.ready(live.work, self.now);
                    self.request_turn();
                }
            }
        }
    }

    /// Slurm calls a job's `setup`.
    pub(super) fn call_setup(&mut self, number: u32) {
        if let Some(queued) = self.slurm.queued.get_mut(&number) {
            queued.stage = JobStage::Staging;
        }
        let attempt = self.attempt_of(number);
        self.after(self.settings.times.call, Due::SetUp(number, attempt));
    }

    /// Jobs that wait for others are looked at again.
    pub(super) fn release_dependents(&mut self) {
        let waiting = self.slurm.snapshot.jobs.values();
        let waiting = waiting.filter(|job| !job.dependency.is_empty());
        let waiting: Vec<u32> = waiting.map(|job| job.number).collect();
        for number in waiting {
            self.become_eligible(number);
        }
    }

    pub(super) fn staged(&mut self, number: u32) {
        if let Some(queued) = self.slurm.queued.get_mut(&number) {
            queued.stage = JobStage::Staged;
        }
        self.slurm.settle_dependencies(number, self.now);
        self.request_turn();
    }

    /// Slurm has given a job nodes.
    pub(super) fn begun(&mut self, number: u32) {
        let Some(live) = self.live.get_mut(&number) else {
            return;
        };
        live.phase = LivePhase::Gate;
        live.since = self.now;
        let (work, attempt) = (live.work, live.attempt);
        let nodes = self.slurm.queued.get(&number);
        let nodes = nodes.map_or(&[][..], |queued| &queued.nodes);
        self.record.begun(work, nodes, self.now);
        self.after(self.settings.times.launch, Due::Launched(number, attempt));
    }

    pub(super) fn launched(&mut self, number: u32) {
        let (attempt, has_lines) = match self.live.get(&number) {
            Some(live) => (live.attempt, live.has_lines),
            None => return,
        };
        if has_lines {
            self.note_outputs(number);
            let nodes = self.names_of(number);
            self.call(number, Stage::PreRun(nodes));
        } else {
            self.at(self.now, Due::Start(number, attempt));
        }
    }

    fn nodes_of(&self, number: u32) -> Vec<usize> {
        let queued = self.slurm.queued.get(&number);
        queued.map_or_else(Vec::new, |queued| queued.nodes.clone())
    }

    pub(super) fn names_of(&self, number: u32) -> Vec<String> {
        let queued = self.slurm.queued.get(&number);
        let nodes = queued.into_iter().flat_map(|q| &q.nodes);
        nodes.map(|at| self.slurm.names[*at].clone()).collect()
    }

    /// The daemons know what a job is going to write.
    fn note_outputs(&mut self, number: u32) {
        let work = self.live[&number].work;
        let job = self.spec(work);
        for item in job
            .writes
            .iter()
            .filter(|item| self.handed_over.has(**item))
        {
            let bytes = self.work.items[item.at()]
                .bytes
                .div_ceil(job.nodes.max(1).into());
            let key = (number, dataset_name(*item));
            self.daemons.outputs.insert(key, bytes);
        }
    }

    /// A job's first instruction.
    pub(super) fn start(&mut self, number: u32) -> Result<(), ClusterError> {
        let Some(live) = self.live.get(&number) else {
            return Ok(());
        };
        let work = live.work;
        self.check_data(number, work)?;
        self.record.started(work, self.now);
        let job = self.spec(work);
        let nodes = self.nodes_of(number);
        let mut streams = Vec::new();
        for input in &job.reads {
            let all = self.work.items[input.item.at()].bytes;
            let bytes = match input.spread {
                Spread::Share => all.div_ceil(nodes.len().max(1) as u64),
                Spread::Whole => all,
            };
            let is_handed_over = self.handed_over.has(input.item);
            for node in nodes.iter().map(|at| NodeId(*at as u32)) {
                let way = match is_handed_over {
                    true => StreamWay::TierRead(node),
                    false => StreamWay::In {
                        to: node,
                        on_tier: false,
                    },
                };
                self.record.bytes(way, bytes);
                streams.push((bytes, way));
            }
        }
        self.begin_phase(number, LivePhase::Reads, &streams);
        Ok(())
    }

    /// No job begins without its data.
    fn check_data(&self, number: u32, work: JobId) -> Result<(), ClusterError> {
        if !self.settings.is_checked {
            return Ok(());
        }
        let job = self.spec(work);
        let Some(flow) = job.flow else {
            return Ok(());
        };
        let nodes = self.names_of(number);
        for input in job
            .reads
            .iter()
            .filter(|input| self.handed_over.has(input.item))
        {
            let dataset = dataset_name(input.item);
            let stored = self.daemons.stored(&workflow_name(flow), &dataset);
            let wanted = self.work.items[input.item.at()].bytes;
            let on = match self.is_on_first(&job, input.item, input.spread) {
                true => &nodes[..1],
                false => &nodes[..],
            };
            let mut on = on.iter();
            if let Some(node) = on.find(|node| !self.daemons.sees(node, number, &dataset)) {
                let what = format!("job {number} does not see {dataset} on {node}");
                return Err(self.rule("no job begins without its data", what));
            }
            if stored < wanted {
                let what = format!("{dataset} has {stored} of {wanted} bytes for job {number}");
                return Err(self.rule("no job begins without its data", what));
            }
        }
        Ok(())
    }

    /// Whether only the first node of a job gets an input.
    fn is_on_first(&self, job: &Job, item: ItemId, spread: Spread) -> bool {
        let maker = self.handed_over.makers.get(&item);
        let of_several = maker.is_some_and(|maker| self.spec(*maker).nodes > 1);
        spread == Spread::Share && job.nodes == 1 && !of_several
    }

    fn begin_phase(&mut self, number: u32, phase: LivePhase, streams: &[(u64, StreamWay)]) {
        let started: Vec<MachineStream> = streams
            .iter()
            .map(|(bytes, way)| self.network.start(self.now, *bytes, *way))
            .collect();
        for stream in &started {
            self.streams.insert(*stream, StreamPurpose::Job(number));
        }
        if let Some(live) = self.live.get_mut(&number) {
            live.phase = phase;
            live.since = self.now;
            live.streams = started.into_iter().collect();
        }
        if streams.is_empty() {
            self.phase_over(number);
        }
    }

    pub(super) fn job_streamed(&mut self, number: u32, stream: MachineStream) {
        let Some(live) = self.live.get_mut(&number) else {
            return;
        };
        live.streams.remove(&stream);
        if live.streams.is_empty() {
            self.phase_over(number);
        }
    }

    fn phase_over(&mut self, number: u32) {
        let Some(live) = self.live.get_mut(&number) else {
            return;
        };
        let (work, attempt, phase) = (live.work, live.attempt, live.phase);
        self.record.moved_for(work, self.now - live.since);
        match phase {
            LivePhase::Reads => {
                live.phase = LivePhase::Computes;
                let compute = self.work.jobs[work.at()].compute;
                self.after(compute, Due::Computed(number, attempt));
            }
            LivePhase::Writes => {
                self.note_delivered(work);
                let release = self.settings.times.release;
                self.record.ended(work, self.now, self.now + release);
                self.after(release, Due::Released(number, attempt));
            }
            LivePhase::Waits | LivePhase::Gate | LivePhase::Computes | LivePhase::Out => {}
        }
    }

    /// The results that a job writes outside by itself are there.
    fn note_delivered(&mut self, work: JobId) {
        let job = self.spec(work);
        let mut own = job
            .writes
            .iter()
            .filter(|item| !self.handed_over.has(**item));
        if let (Some(flow), true) = (
            job.flow,
            own.any(|item| self.work.items[item.at()].item.keep),
        ) {
            self.record.delivered(flow, self.now);
        }
    }

    pub(super) fn computed(&mut self, number: u32) {
        let Some(live) = self.live.get(&number) else {
            return;
        };
        let job = self.spec(live.work);
        let nodes = self.nodes_of(number);
        let mut streams = Vec::new();
        for item in &job.writes {
            let bytes = self.work.items[item.at()]
                .bytes
                .div_ceil(nodes.len().max(1) as u64);
            let is_handed_over = self.handed_over.has(*item);
            for node in nodes.iter().map(|at| NodeId(*at as u32)) {
                let way = match is_handed_over {
                    true => StreamWay::TierWrite(node),
                    false => StreamWay::Out {
                        from: node,
                        on_tier: false,
                    },
                };
                self.record.bytes(way, bytes);
                streams.push((bytes, way));
            }
        }
        self.begin_phase(number, LivePhase::Writes, &streams);
    }

    /// A job's script has ended, and its nodes are free.
    pub(super) fn released(&mut self, number: u32) {
        let Some(live) = self.live.get_mut(&number) else {
            return;
        };
        live.phase = LivePhase::Out;
        let (work, has_lines) = (live.work, live.has_lines);
        self.account(number, AccountedState::Completed);
        self.record.released(work, self.now);
        self.slurm.note_end(number, true);
        if has_lines {
            self.slurm.free(number, SlurmJobState::StageOut);
            let attempt = self.attempt_of(number);
            self.after(self.settings.times.call, Due::PostRun(number, attempt));
        } else {
            self.slurm.note_out(number);
            self.over(number);
        }
        self.submit_behind(work);
        self.release_dependents();
        self.request_pass();
    }

    /// Jobs that a job's last line submits.
    fn submit_behind(&mut self, work: JobId) {
        let behind = (0u32..).zip(&self.work.jobs);
        let behind = behind.filter(|(_, w)| w.submit == Submit::After(work));
        let behind: Vec<u32> = behind.map(|(number, _)| number).collect();
        for number in behind {
            self.at(self.now, Due::Submit(number));
        }
    }

    /// A job is over, with its stages.
    pub(super) fn over(&mut self, number: u32) {
        let Some(live) = self.live.remove(&number) else {
            return;
        };
        self.slurm.forget(number);
        self.record.done(live.work);
        self.open -= 1;
        self.end_workflow_of(live.work);
    }

    /// A job will never run, and what waits for it neither.
    pub(super) fn give_up(&mut self, number: u32, why: &str) {
        let Some(live) = self.live.get(&number) else {
            return;
        };
        let (work, has_lines) = (live.work, live.has_lines);
        if live.phase != LivePhase::Waits && live.phase != LivePhase::Out {
            self.account(number, AccountedState::Failed);
            self.record.released(work, self.now);
        }
        self.stop_streams_of(number);
        self.slurm.note_end(number, false);
        self.slurm.forget(number);
        self.live.remove(&number);
        self.record.taken_out(work, why);
        self.open -= 1;
        if has_lines && self.controller.is_some() {
            self.call(number, Stage::Teardown { hurry: true });
        }
        self.take_out_behind(work);
        self.release_dependents();
        self.request_turn();
    }

    fn take_out_unsubmitted(&mut self, work: JobId, why: &str) {
        self.record.taken_out(work, why);
        self.open -= 1;
        self.take_out_behind(work);
    }

    /// Jobs that it would have submitted.
    fn take_out_behind(&mut self, work: JobId) {
        let mut lost = vec![work];
        while let Some(before) = lost.pop() {
            let behind = (0..).map(JobId).zip(&self.work.jobs);
            let behind = behind.filter(|(_, w)| w.submit == Submit::After(before));
            let behind: Vec<JobId> = behind.map(|(id, _)| id).collect();
            for id in behind {
                self.record
                    .taken_out(id, "the job that submits it was taken out");
                self.open -= 1;
                lost.push(id);
            }
        }
    }

    pub(super) fn stop_streams_of(&mut self, number: u32) {
        if let Some(live) = self.live.get_mut(&number) {
            for stream in std::mem::take(&mut live.streams) {
                self.network.stop(self.now, stream);
                self.streams.remove(&stream);
            }
        }
    }
}
