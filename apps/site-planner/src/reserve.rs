//! The wishes of drive: nodes for the jobs of workflows that the planner has given some, and for the next steps of those
//! that run. docs/internals/driving-slurm.md, "One cycle of drive".

use crate::SitePlanner;
use crate::jobs::{KnownJob, KnownStage};
use crate::marks::{JOINS_WITHIN, JoinWish, ReservationWish, WorkflowKey};
use std::collections::{BTreeMap, BTreeSet};
use tarn_site::PlanningView;
use tarn_slurm::{SlurmJobState, SlurmSnapshot};
use tarn_types::id::NodeId;
use tarn_types::units::{Elapsed, Nanos, SECOND, Time};

/// For which the nodes of a step that has ended stay kept for the next one: its outputs are published, and Slurm takes
/// note of its end.
const BETWEEN_STEPS: Nanos = 60 * SECOND;

/// A job waits for its data if it gains so much by it: a begin that is delayed takes a second or two more.
const LEAST_GAIN: Nanos = 5 * SECOND;

/// A next step, and the nodes that are kept for it.
#[derive(Debug, Clone)]
pub(crate) struct KeptNodes {
    nodes: Vec<NodeId>,
    /// The step before it, while it runs.
    before: u32,
    until: Time,
    /// When the step before it ends by its limit.
    free: Time,
}

/// A wish in the making.
struct Draft {
    urgency: Time,
    nodes: BTreeSet<String>,
    jobs: Vec<JoinWish>,
    /// When the last of them ends by its limit.
    end: Time,
    reason: String,
}

impl SitePlanner {
    /// The reservations by which Slurm would follow the plan, the most urgent first. To be called after
    /// [`SitePlanner::see`], with the same snapshot and state. `delayed` are jobs that wait because of an earlier wish.
    pub fn reservation_wishes(
        &mut self,
        snapshot: &SlurmSnapshot,
        view: &PlanningView,
        delayed: &BTreeSet<u32>,
    ) -> Vec<ReservationWish> {
        self.note_next_steps(view);
        let mut drafts: BTreeMap<WorkflowKey, Draft> = BTreeMap::new();
        for (number, wish) in &self.wishes {
            if wish.allocated_for.is_some() {
                let reason = format!("job {number} gets them now");
                self.draft(
                    *number,
                    &wish.nodes,
                    (self.now, self.now, reason),
                    snapshot,
                    view,
                    &mut drafts,
                );
            }
        }
        for (number, kept) in &self.kept {
            let is_given = self
                .wishes
                .get(number)
                .is_some_and(|w| w.allocated_for.is_some());
            if !is_given {
                let reason = format!("job {number} continues on nodes of job {}", kept.before);
                self.draft(
                    *number,
                    &kept.nodes,
                    (kept.until, kept.free.max(self.now), reason),
                    snapshot,
                    view,
                    &mut drafts,
                );
            }
        }
        self.draft_data_wait((snapshot, view), delayed, &mut drafts);
        let mut wishes: Vec<(Time, ReservationWish)> = drafts
            .into_iter()
            .filter_map(|(workflow, draft)| {
                let first = draft.jobs.first()?;
                let user = snapshot.jobs.get(&first.job)?.user_name.clone();
                let wish = ReservationWish {
                    workflow,
                    user,
                    nodes: draft.nodes,
                    jobs: draft.jobs,
                    seconds: u32::try_from(draft.end.saturating_sub(self.now) / SECOND)
                        .unwrap_or(u32::MAX),
                    reason: draft.reason,
                };
                Some((draft.urgency, wish))
            })
            .collect();
        wishes.sort_by(|a, b| (a.0, &a.1.workflow).cmp(&(b.0, &b.1.workflow)));
        wishes.into_iter().map(|(_, wish)| wish).collect()
    }

    /// Notes which steps continue on nodes of running ones. What it noted of a step that has ended holds for a while.
    fn note_next_steps(&mut self, view: &PlanningView) {
        let mut next: BTreeMap<u32, KeptNodes> = BTreeMap::new();
        for (number, known) in &self.jobs.jobs {
            if let Some((job, nodes)) = self.next_step(known) {
                let since = match known.stage {
                    KnownStage::Has { since, .. } => since,
                    _ => self.now,
                };
                let end = since.saturating_add(known.spec.expect);
                let kept = KeptNodes {
                    nodes,
                    before: *number,
                    until: end.max(self.now).saturating_add(BETWEEN_STEPS),
                    free: since.saturating_add(known.spec.limit),
                };
                next.insert(job, kept);
            }
        }
        let (now, jobs) = (self.now, &self.jobs.jobs);
        self.kept.retain(|number, kept| {
            let waits = jobs
                .get(number)
                .is_some_and(|job| job.stage == KnownStage::Waits);
            // Slurm may show it for a moment longer than the site service.
            let has_ended = view.jobs.get(&kept.before).is_none_or(|job| job.is_well);
            let runs = jobs.contains_key(&kept.before) && !has_ended;
            if runs {
                // It runs, and nothing is kept on it any more: the promise to somebody else forbids it.
                return waits && next.contains_key(number);
            }
            kept.until = kept.until.min(now.saturating_add(BETWEEN_STEPS));
            kept.free = kept.free.min(now);
            waits && kept.until > now
        });
        self.kept.extend(next);
    }

    /// The waiting job that continues on nodes of a running one, and these.
    fn next_step(&self, known: &KnownJob) -> Option<(u32, Vec<NodeId>)> {
        let KnownStage::Has { nodes, .. } = &known.stage else {
            return None;
        };
        let [id] = known.ids[..] else {
            return None;
        };
        let (next, wants) = self.planner.next_step(id)?;
        let number = self.jobs.number_of(next)?;
        let next = self.jobs.jobs.get(&number)?;
        let may = |node: &&NodeId| next.spec.on.as_ref().is_none_or(|on| on.contains(**node));
        let nodes: Vec<NodeId> = nodes
            .iter()
            .filter(may)
            .copied()
            .take(wants as usize)
            .collect();
        let waits = next.stage == KnownStage::Waits && nodes.len() == wants as usize;
        waits.then_some((number, nodes))
    }

    fn draft(
        &self,
        number: u32,
        nodes: &[NodeId],
        (urgency, free, reason): (Time, Time, String),
        snapshot: &SlurmSnapshot,
        view: &PlanningView,
        drafts: &mut BTreeMap<WorkflowKey, Draft>,
    ) {
        let waits = snapshot
            .jobs
            .get(&number)
            .is_some_and(|job| job.state == SlurmJobState::Pending);
        // A job that shares nodes would never find its own idle.
        let known = self.jobs.jobs.get(&number);
        let known = known.filter(|job| waits && job.spec.cores == 0);
        let (Some(known), Some((user, Some(workflow)))) = (known, self.owners.get(&number)) else {
            return;
        };
        let names: BTreeSet<String> = nodes
            .iter()
            .map(|node| self.topology.name(*node).to_owned())
            .collect();
        let draft = drafts
            .entry((*user, workflow.clone()))
            .or_insert_with(|| Draft {
                urgency,
                nodes: BTreeSet::new(),
                jobs: Vec::new(),
                end: 0,
                reason,
            });
        draft.urgency = draft.urgency.min(urgency);
        draft.end = draft.end.max(free.saturating_add(known.spec.limit));
        draft.nodes.extend(names.iter().cloned());
        draft.jobs.push(JoinWish {
            job: number,
            nodes: names,
            is_called: view.jobs.get(&number).is_some_and(|job| job.is_called),
            is_staged: view.jobs.get(&number).is_some_and(|job| job.is_staged),
            delay: self.delay_until_it_joins(known, nodes),
            needs_delay: false,
        });
    }

    /// Its reservation keeps the job itself off these nodes until it joins: it waits for that if it has data there.
    fn delay_until_it_joins(&self, known: &KnownJob, nodes: &[NodeId]) -> Option<Nanos> {
        known.data.as_ref().filter(|data| !data.reads.is_empty())?;
        let [id] = known.ids[..] else {
            return None;
        };
        let elsewhere = self.planner.bringing_elsewhere(id, nodes);
        elsewhere
            .is_none_or(|time| time >= LEAST_GAIN)
            .then_some(JOINS_WITHIN)
    }

    /// A job that Slurm would start now without its data waits for the nodes that have it, if these are free soon enough.
    fn draft_data_wait(
        &mut self,
        (snapshot, view): (&SlurmSnapshot, &PlanningView),
        delayed: &BTreeSet<u32>,
        drafts: &mut BTreeMap<WorkflowKey, Draft>,
    ) {
        let wait = self.planner.data_wait();
        let number = wait.as_ref().and_then(|wait| self.jobs.number_of(wait.job));
        let (Some(wait), Some(number)) = (wait, number) else {
            return;
        };
        // Where it could not begin, it waits without a mark of tarn's; of one that is delayed, the nodes have just been taken.
        let is_delayed = delayed.contains(&number);
        let is_useful = is_delayed || wait.could_begin && wait.gain >= LEAST_GAIN;
        let is_called = view.jobs.get(&number).is_some_and(|job| job.is_called);
        let of_another = |kept: (&u32, &KeptNodes)| {
            *kept.0 != number && kept.1.nodes.iter().any(|node| wait.nodes.contains(node))
        };
        if !is_useful || !is_called || self.kept.iter().any(of_another) {
            return;
        }
        let reason = format!(
            "job {number} waits {} for these nodes with its data: to bring it to others takes {}",
            Elapsed(wait.free.saturating_sub(self.now)),
            Elapsed(wait.bringing)
        );
        let times = (wait.free, wait.free, reason);
        self.draft(number, &wait.nodes, times, snapshot, view, drafts);
        let total = wait.bringing.min(self.policy.bound);
        let joins = drafts.values_mut().flat_map(|draft| &mut draft.jobs);
        for join in joins.filter(|join| join.job == number) {
            (join.delay, join.needs_delay) = (Some(total), true);
        }
    }
}
