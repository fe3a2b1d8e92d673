//! The site service of a simulated cluster: its core with the calls of Slurm's scripts, the readings of Slurm, the planner's turns,
//! and the calls that follow. It does what tarnd's controller does, in virtual time.

use super::controller::{StageCall, rates_of};
use super::scripts::{user_of, workflow_name};
use super::slurm::EPOCH;
use super::world::{SimulatedCluster, StreamPurpose};
use super::{Due, MILLISECOND, ServiceMode, site_time};
use crate::{CallError, ReservedFor, SitePlanner};
use std::collections::{BTreeMap, BTreeSet};
use tarn_proto::site::{
    ControllerRequest, NodeOrder, PlacementAdvice, SlurmUpdate, Stage, Staging,
};
use tarn_simulator::site::MachineStream;
use tarn_site::{SiteRequest, SiteServiceAction, SiteServiceEvent};
use tarn_slurm::{SlurmAction, expected_nodes, job_change};
use tarn_types::site::JobId;
use tarn_types::units::{Nanos, SECOND, Time};

/// Slurm's user and root are trusted.
const ROOT: u32 = 0;
/// An order that moves no bytes.
const ORDER: Nanos = 10 * MILLISECOND;
/// Between two readings on request; while a job waits; where tarn drives; and while none does. As tarnd's reader.
const ON_REQUEST: Nanos = 200 * MILLISECOND;
const WAITED_FOR: Nanos = 5 * SECOND;
const DRIVEN: Nanos = SECOND;
const UNUSED: Nanos = 30 * SECOND;
/// Between two turns of the planner, as tarnd's.
const PLANNED: Nanos = 2 * SECOND;
const PLANNED_DRIVEN: Nanos = 250 * MILLISECOND;

impl SimulatedCluster {
    pub(super) fn start_service(&mut self) {
        let machine = self.machine.clone();
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.planner = SitePlanner::new(controller.policy, rates_of(&machine));
        self.site_event(SiteServiceEvent::began(1));
        for node in self.slurm.names.clone() {
            self.open_node(&node);
        }
        self.request_reading();
    }

    pub(super) fn open_node(&mut self, node: &str) {
        let (capacity, holds, jobs) = self.daemons.open(node);
        self.site_event(SiteServiceEvent::Opened {
            node: node.to_owned(),
            capacity,
            stores: Vec::new(),
            holds,
            partial: Vec::new(),
            jobs,
        });
    }

    /// An event of the site service, and the orders and replies that follow.
    pub(super) fn site_event(&mut self, event: SiteServiceEvent) {
        let now = site_time(self.now);
        let Some(controller) = &mut self.controller else {
            return;
        };
        if controller.keeps_log {
            controller.log.push((now, event.clone()));
        }
        let mut actions = Vec::new();
        controller.site.step(now, event, &mut actions);
        for action in actions {
            match action {
                SiteServiceAction::Order {
                    node,
                    number,
                    order,
                } => self.take_order(node, number, order),
                SiteServiceAction::Answer { token, reply } => {
                    let call = self
                        .controller
                        .as_mut()
                        .and_then(|c| c.calls.remove(&token));
                    self.replies.extend(call.map(|call| (call, reply)));
                }
                SiteServiceAction::Notify { .. } => {}
            }
        }
    }

    fn take_order(&mut self, node: String, number: u64, order: NodeOrder) {
        if let NodeOrder::Stop(stopped) = &order {
            self.drop_order(&node, *stopped);
        }
        let Some(in_hand) = self.daemons.take(&node, order) else {
            return;
        };
        let mut streams = BTreeSet::new();
        for (bytes, way) in &in_hand.streams {
            let stream = self.network.start(self.now, *bytes, *way);
            self.record.bytes(*way, *bytes);
            let purpose = StreamPurpose::Order(node.clone(), number);
            self.streams.insert(stream, purpose);
            streams.insert(stream);
        }
        if streams.is_empty() {
            self.after(ORDER, Due::OrderDone(node.clone(), number));
        }
        if let Some(controller) = &mut self.controller {
            controller
                .in_hand
                .insert((node, number), (in_hand, streams));
        }
    }

    /// Forgets an order: its node is lost, or the controller does not want it any more.
    pub(super) fn drop_order(&mut self, node: &str, number: u64) {
        let controller = self.controller.as_mut();
        let found = controller.and_then(|c| c.in_hand.remove(&(node.to_owned(), number)));
        for stream in found.into_iter().flat_map(|(_, streams)| streams) {
            self.network.stop(self.now, stream);
            self.streams.remove(&stream);
        }
    }

    pub(super) fn order_streamed(&mut self, node: String, number: u64, stream: MachineStream) {
        let key = (node, number);
        let in_hand = self
            .controller
            .as_mut()
            .and_then(|c| c.in_hand.get_mut(&key));
        let Some((_, streams)) = in_hand else {
            return;
        };
        streams.remove(&stream);
        if streams.is_empty() {
            self.order_done(&key.0, number);
        }
    }

    pub(super) fn order_done(&mut self, node: &str, number: u64) {
        let controller = self.controller.as_mut();
        let found = controller.and_then(|c| c.in_hand.remove(&(node.to_owned(), number)));
        let Some((in_hand, _)) = found else {
            return;
        };
        let report = self.daemons.finish(node, number, in_hand);
        self.site_event(SiteServiceEvent::Reported {
            order: number,
            report,
        });
    }

    /// Slurm calls one of tarn's scripts.
    pub(super) fn call(&mut self, job: u32, stage: Stage) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.next_token += 1;
        let token = controller.next_token;
        let is_awaited = matches!(stage, Stage::Setup(_) | Stage::Reported | Stage::PreRun(_));
        let ask = ControllerRequest::Stage(Staging {
            job,
            stage: stage.clone(),
        });
        controller.calls.insert(token, StageCall { job, stage });
        self.site_event(SiteServiceEvent::Requested(SiteRequest {
            token,
            user: ROOT,
            groups: Vec::new(),
            trusted: true,
            ask,
        }));
        // A job that arrives waits for a reading, and where tarn drives it follows each stage.
        if is_awaited || self.settings.mode == ServiceMode::Drive {
            self.request_reading();
        }
    }

    /// No further job of a workflow comes: its user says so.
    pub(super) fn end_workflow_of(&mut self, work: JobId) {
        let job = self.work.jobs[work.at()].job.clone();
        let Some(flow) = job.flow.filter(|_| self.handed_over.is_of(&job)) else {
            return;
        };
        let of_flow = (0..).map(JobId).zip(&self.work.jobs);
        let mut of_flow = of_flow.filter(|(_, w)| w.job.flow == Some(flow));
        if !of_flow.all(|(id, _)| self.record.is_over(id)) {
            return;
        }
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.next_token += 1;
        let token = controller.next_token;
        let user = user_of(&job);
        self.site_event(SiteServiceEvent::Requested(SiteRequest {
            token,
            user,
            groups: vec![user],
            trusted: false,
            ask: ControllerRequest::End {
                user,
                workflow: workflow_name(flow),
            },
        }));
    }

    /// The changes of jobs in Slurm that follow from advice.
    pub(super) fn follow_advice(&mut self, advices: Vec<(u32, PlacementAdvice)>) {
        for (job, advice) in advices {
            let advice = match self.settings.mode {
                ServiceMode::Advise | ServiceMode::Drive => advice,
                ServiceMode::Without | ServiceMode::Observe => continue,
            };
            let change = job_change(&self.slurm.snapshot, job, &advice);
            let update: Option<SlurmUpdate> = change.map(|change| change.update);
            if let Some(update) = update {
                self.slurm.update(&update);
            }
        }
        self.request_turn();
    }

    /// The nodes on which a job is expected: its inputs may be brought there.
    pub(super) fn expected(&self, job: u32) -> Vec<String> {
        let row = self.slurm.snapshot.jobs.get(&job);
        row.map_or_else(Vec::new, |row| expected_nodes(&self.slurm.snapshot, row))
    }

    /// Something waits for a reading that begins from now on.
    pub(super) fn request_reading(&mut self) {
        if let Some(controller) = &mut self.controller {
            controller.is_requested = true;
            let last = controller.last_reading;
            let at = last.map_or(0, |last| last.saturating_add(ON_REQUEST));
            self.reading_at(at);
        }
    }

    fn reading_at(&mut self, at: Time) {
        let at = at.max(self.now);
        if let Some(controller) = &mut self.controller
            && controller.next_reading.is_none_or(|next| at < next)
        {
            controller.next_reading = Some(at);
            self.at(at, Due::Reading);
        }
    }

    pub(super) fn begin_reading(&mut self) {
        let snapshot = self.slurm.read(self.now);
        let now = self.now;
        let Some(controller) = &mut self.controller else {
            return;
        };
        if controller.next_reading.is_none_or(|next| next > now) {
            return;
        }
        controller.next_reading = None;
        controller.last_reading = Some(now);
        controller.is_requested = false;
        controller.under_way = Some((now, snapshot));
        self.after(self.settings.times.reading, Due::Read);
    }

    /// A reading has come: jobs that nobody reported are found, and the planner gets it.
    pub(super) fn end_reading(&mut self) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let Some((began, snapshot)) = controller.under_way.take() else {
            return;
        };
        let jobs = &snapshot.jobs;
        controller.looked_at.retain(|job| jobs.contains_key(job));
        let waits = jobs.values().filter(|job| {
            let is_new = !controller.site.is_known(job.number);
            job.has_burst_buffer && job.state.is_waiting() && is_new
        });
        let is_read = |job: &u32| controller.looked_at.contains(job);
        let mut unknown: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for job in waits.filter(|job| !is_read(&job.number)) {
            unknown.entry(job.user).or_default().insert(job.number);
        }
        let gone = controller.site.queued_jobs();
        let gone: BTreeSet<u32> = gone.filter(|job| !jobs.contains_key(job)).collect();
        let found: Vec<u32> = unknown.values().flatten().copied().collect();
        let is_of_use = controller.site.is_arriving() || !gone.is_empty();
        controller.reading = Some((began, snapshot));
        controller.is_seen = false;
        if is_of_use {
            let began = site_time(began);
            self.site_event(SiteServiceEvent::Listed {
                began,
                unknown,
                gone,
            });
        }
        self.find(&found);
        self.site_event(SiteServiceEvent::Passed);
        self.plan_next_turn();
        self.next_regular_reading();
    }

    fn find(&mut self, jobs: &[u32]) {
        for number in jobs {
            let submission = self.submission_of(*number);
            if let Some(controller) = &mut self.controller {
                controller.looked_at.insert(*number);
            }
            if let Some(submission) = submission {
                let (job, submission) = (*number, Box::new(submission));
                self.site_event(SiteServiceEvent::Found { job, submission });
            }
        }
        if !jobs.is_empty() {
            self.request_reading();
        }
    }

    fn next_regular_reading(&mut self) {
        let Some(controller) = &self.controller else {
            return;
        };
        let waits = controller.site.is_waited_for() || controller.site.is_queued();
        let pause = match (waits, self.settings.mode) {
            _ if controller.marks.has_any() => DRIVEN,
            (true, ServiceMode::Drive) => DRIVEN,
            (true, _) => WAITED_FOR,
            (false, _) => UNUSED,
        };
        let last = controller.last_reading.unwrap_or(self.now);
        self.reading_at(last.saturating_add(pause));
    }

    fn plan_next_turn(&mut self) {
        let pause = match self.settings.mode {
            ServiceMode::Drive => PLANNED_DRIVEN,
            _ => PLANNED,
        };
        let Some(controller) = &mut self.controller else {
            return;
        };
        if controller.is_plan_due {
            return;
        }
        controller.is_plan_due = true;
        let at = controller
            .last_plan
            .map_or(0, |last| last.saturating_add(pause));
        self.at(at, Due::Plan);
    }

    /// The planner sees the newest reading; in drive, Slurm's marks follow.
    pub(super) fn plan(&mut self) {
        let (now, drives) = (self.now, self.settings.mode == ServiceMode::Drive);
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.is_plan_due = false;
        controller.last_plan = Some(now);
        let Some((began, snapshot)) = controller.reading.as_ref().filter(|_| !controller.is_seen)
        else {
            return;
        };
        controller.is_seen = true;
        let view = controller.site.planning(controller.policy.has_sleepers());
        let undelayed = controller.marks.undelayed(snapshot);
        controller.planner.see(&undelayed, &view, site_time(now));
        if !drives {
            return;
        }
        let delayed = controller.marks.delayed();
        let planner = &mut controller.planner;
        let wishes = planner.reservation_wishes(&undelayed, &view, &delayed);
        let time = |at: Time| at.saturating_add(EPOCH);
        let step = controller
            .marks
            .step(snapshot, time(*began), &wishes, time(now));
        for order in &step.orders {
            let result: Result<(), CallError> = self.slurm.perform(now, &order.action);
            controller.marks.done(order, result, time(now));
        }
        let reserved = controller.marks.newly_reserved(time(now));
        self.record.marks += step.orders.len() as u64;
        for order in &step.orders {
            if let SlurmAction::DelayUntil { seconds, .. } = &order.action {
                self.record.begin_times += 1;
                // A begin time that passes by itself is no event to Slurm: its loops find the job.
                self.after(Nanos::from(*seconds) * SECOND, Due::Look);
            }
        }
        if !step.orders.is_empty() {
            self.request_turn();
            self.request_reading();
        }
        for ReservedFor { job, nodes } in reserved {
            self.site_event(SiteServiceEvent::Advised { job, nodes });
        }
    }
}
