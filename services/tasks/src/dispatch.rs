//! The choice of the next task.

use crate::core::Core;
use crate::slots::TaskSlot;
use crate::space::StartObstacle;
use crate::task::TaskPhase;
use crate::{AGED, Finish, LEAST_COST, MAX_HANDED, PASSED, TaskAction, TaskSize};
use std::collections::BTreeSet;
use tarn_proto::local::{RequestError, TaskId, TaskLocation, TaskOperation, UserId};
use tarn_types::units::Time;

/// Something that is kept for a task which cannot start, from those behind it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ReservedResource {
    Slot(TaskSlot),
    /// Space in a dataspace.
    Space(String),
    /// Space in a dataspace under a user's quota.
    Quota(String, UserId),
}

/// The result for a task that was looked at.
enum DispatchResult {
    /// It has been started (or ended).
    Moved,
    /// It lacks these.
    Blocked(Vec<ReservedResource>),
}

impl Core {
    /// Starts all that can be started.
    pub(crate) fn dispatch(&mut self, now: Time, actions: &mut Vec<TaskAction>) {
        while !self.paused && self.start_one(now, actions) {}
    }

    /// Starts the first task that can: users in the order of their turns, their tasks by rank, over at most
    /// [`PASSED`] of each that cannot.
    fn start_one(&mut self, now: Time, actions: &mut Vec<TaskAction>) -> bool {
        let mut held: BTreeSet<ReservedResource> = BTreeSet::new();
        // Nearly always the first of the first can start: nothing is gathered for it.
        if let Some(first) = self.first()
            && self.consider(now, first, &mut held, actions)
        {
            return true;
        }
        let users: Vec<UserId> = self.queues.turns().collect();
        for user in users {
            let ready = self.queues.ready(user).take(PASSED);
            let ids: Vec<TaskId> = ready.map(|rank| rank.2).collect();
            for id in ids {
                if self.consider(now, id, &mut held, actions) {
                    return true;
                }
            }
        }
        false
    }

    fn first(&self) -> Option<TaskId> {
        let user = self.queues.turns().next()?;
        self.queues.ready(user).next().map(|rank| rank.2)
    }

    /// True when the queues have changed.
    fn consider(
        &mut self,
        now: Time,
        id: TaskId,
        held: &mut BTreeSet<ReservedResource>,
        actions: &mut Vec<TaskAction>,
    ) -> bool {
        match self.look(now, id, held, actions) {
            DispatchResult::Moved => true,
            DispatchResult::Blocked(lacking) => {
                let aged = self.tasks.get_mut(&id).is_some_and(|task| {
                    let since = *task.blocked.get_or_insert(now);
                    now.saturating_sub(since) > AGED
                });
                if aged {
                    held.extend(self.all_holds(id));
                }
                held.extend(lacking);
                false
            }
        }
    }

    fn look(
        &mut self,
        now: Time,
        id: TaskId,
        held: &BTreeSet<ReservedResource>,
        actions: &mut Vec<TaskAction>,
    ) -> DispatchResult {
        let Some(task) = self.tasks.get(&id) else {
            return DispatchResult::Blocked(Vec::new());
        };
        if task.spec.kind == TaskOperation::Nothing {
            self.take(now, id, LEAST_COST);
            self.count_stopped();
            self.end(now, id, Ok(()), Finish::nothing(), actions);
            return DispatchResult::Moved;
        }
        let slots = task.slots();
        // A removal passes those that wait for space.
        let removes = matches!(task.spec.kind, TaskOperation::Remove { .. });
        let is_kept = |slot: &TaskSlot| held.contains(&ReservedResource::Slot(slot.clone()));
        let is_lacking = |slot: &&TaskSlot| !self.is_free(slot) || (!removes && is_kept(slot));
        let lacking = slots.iter().filter(is_lacking).cloned();
        let mut lacking: Vec<ReservedResource> = lacking.map(ReservedResource::Slot).collect();
        if !lacking.is_empty() {
            return DispatchResult::Blocked(lacking);
        }
        let holds = task.holds;
        if !removes && !holds && self.space_holds(id).iter().any(|h| held.contains(h)) {
            return DispatchResult::Blocked(lacking);
        }
        let Some(size) = self.known_size(id) else {
            self.take(now, id, LEAST_COST);
            self.slots.take(slots);
            if let Some(task) = self.tasks.get_mut(&id) {
                task.phase = TaskPhase::Measuring;
            }
            actions.push(TaskAction::Measure(id));
            return DispatchResult::Moved;
        };
        let space = if holds {
            Ok(())
        } else {
            self.space_for(now, id, size, actions)
        };
        match space {
            Ok(()) => {}
            Err(Ok(hold)) => {
                lacking.push(hold);
                return DispatchResult::Blocked(lacking);
            }
            Err(Err(why)) => {
                self.end(now, id, Err(why), Finish::nothing(), actions);
                return DispatchResult::Moved;
            }
        }
        let measured = self.tasks.get(&id).is_some_and(|t| t.size.is_some());
        // A measured task was charged then.
        let cost = if measured {
            LEAST_COST
        } else {
            size.bytes.max(LEAST_COST)
        };
        self.take(now, id, cost);
        self.slots.take(slots);
        self.reserve(id, size);
        actions.push(TaskAction::Start(id));
        DispatchResult::Moved
    }

    /// A task whose size has become known continues, or back into its queue until there is space.
    pub(crate) fn start_measured(&mut self, now: Time, id: TaskId, actions: &mut Vec<TaskAction>) {
        let Some(size) = self.known_size(id) else {
            return;
        };
        match self.space_for(now, id, size, actions) {
            Ok(()) => {
                self.reserve(id, size);
                actions.push(TaskAction::Start(id));
            }
            Err(Ok(_)) => {
                self.release_slots(id);
                self.make_ready_again(id);
            }
            Err(Err(why)) => {
                self.release_slots(id);
                self.end(now, id, Err(why), Finish::nothing(), actions);
            }
        }
    }

    fn make_ready_again(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.phase = TaskPhase::Ready;
        task.started = None;
        let (user, rank) = (task.user, task.rank());
        let weight = self.config.weights.get(&user).copied().unwrap_or(1);
        self.queues.push(user, weight, rank);
    }

    /// The size of a task as far as it matters before its start.
    fn known_size(&self, id: TaskId) -> Option<TaskSize> {
        let task = self.tasks.get(&id)?;
        match &task.spec.kind {
            TaskOperation::Nothing | TaskOperation::Remove { .. } => Some(TaskSize::default()),
            TaskOperation::Copy { from, .. } | TaskOperation::Move { from, .. } => match from {
                TaskLocation::Memory { length, .. } => Some(TaskSize {
                    bytes: *length,
                    space: length.saturating_add(2 * 4096),
                }),
                _ => task.size,
            },
            TaskOperation::Allocate { at, .. } => match at {
                TaskLocation::Space { .. } => task.size,
                _ => Some(TaskSize::default()),
            },
        }
    }

    /// `Err(Ok)` when there will be space, `Err(Err)` when not.
    fn space_for(
        &mut self,
        now: Time,
        id: TaskId,
        size: TaskSize,
        actions: &mut Vec<TaskAction>,
    ) -> Result<(), Result<ReservedResource, RequestError>> {
        let Some(task) = self.tasks.get(&id) else {
            return Ok(());
        };
        let Some(name) = task.fills() else {
            return Ok(());
        };
        let hold = ReservedResource::Space(name.to_owned());
        let Some(space) = self.spaces.get(name) else {
            let text = format!("dataspace `{name}` is gone");
            return Err(Err(RequestError::new(
                tarn_proto::local::Code::NotFound,
                text,
            )));
        };
        match space.fits(name, task.user, size, now) {
            Ok(()) => {}
            Err(StartObstacle::Space) => return Err(Ok(hold)),
            Err(StartObstacle::Quota) => {
                return Err(Ok(ReservedResource::Quota(name.to_owned(), task.user)));
            }
            Err(StartObstacle::Never(why)) => return Err(Err(why)),
            Err(StartObstacle::Survey) => {
                let name = name.to_owned();
                if let Some(space) = self.spaces.get_mut(&name).filter(|s| !s.surveying) {
                    space.survey_begins();
                    actions.push(TaskAction::Survey(name));
                }
                return Err(Ok(hold));
            }
        }
        let (name, user) = (name.to_owned(), task.user);
        if let Some((id, job)) = task.job.and_then(|id| Some((id, self.jobs.get(id)?))) {
            match job.fits(id, &name, size.space) {
                Ok(true) => {}
                Ok(false) => return Err(Ok(ReservedResource::Quota(name, user))),
                // Programs may have removed some of the counted files.
                Err(_) if space.is_unknown(now) => {
                    if let Some(space) = self.spaces.get_mut(&name).filter(|s| !s.surveying) {
                        space.survey_begins();
                        actions.push(TaskAction::Survey(name.clone()));
                    }
                    return Err(Ok(ReservedResource::Quota(name, user)));
                }
                Err(why) => return Err(Err(why)),
            }
        }
        Ok(())
    }

    fn space_holds(&self, id: TaskId) -> Vec<ReservedResource> {
        let Some(task) = self.tasks.get(&id) else {
            return Vec::new();
        };
        let names = task.fills().into_iter();
        names
            .flat_map(|n| {
                [
                    ReservedResource::Space(n.into()),
                    ReservedResource::Quota(n.into(), task.user),
                ]
            })
            .collect()
    }

    fn all_holds(&self, id: TaskId) -> Vec<ReservedResource> {
        let slots = self.tasks.get(&id).map(|task| task.slots());
        let slots = slots
            .unwrap_or_default()
            .into_iter()
            .map(ReservedResource::Slot);
        slots.chain(self.space_holds(id)).collect()
    }

    fn is_free(&self, slot: &TaskSlot) -> bool {
        let most = match slot {
            TaskSlot::External => self.config.external_slots,
            TaskSlot::Link(node) | TaskSlot::Handed(node) => {
                self.config.nodes.get(node).copied().unwrap_or(1)
            }
            TaskSlot::HandedAll => MAX_HANDED,
            TaskSlot::Space(name) => match self.spaces.get(name) {
                Some(space) => space.slots(&self.config),
                None => return true,
            },
        };
        self.slots.taken(slot) < most.max(1)
    }

    pub(crate) fn release_slots(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(&id) {
            self.slots.release(&task.slots());
            self.count_stopped();
        }
    }

    fn count_stopped(&mut self) {
        assert!(self.running > 0, "a task has stopped, and none runs");
        self.running -= 1;
    }

    /// Takes a task out of its queue.
    fn take(&mut self, now: Time, id: TaskId, cost: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.phase = TaskPhase::Running;
        task.started = Some(now);
        task.blocked = None;
        let (user, rank) = (task.user, task.rank());
        // Charged while its user's queue still holds it: an empty queue may be forgotten.
        self.queues.started(user, cost);
        self.queues.remove(user, &rank);
        self.running += 1;
    }

    fn reserve(&mut self, id: TaskId, size: TaskSize) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.phase = TaskPhase::Running;
        task.size = Some(size);
        let (user, job) = (task.user, task.job);
        let name = task.fills().map(str::to_owned);
        let holds = std::mem::take(&mut task.holds);
        if matches!(task.spec.kind, TaskOperation::Move { .. }) {
            self.count_freeing(id, true);
        }
        let Some(name) = name.filter(|_| !holds) else {
            return;
        };
        if let Some(space) = self.spaces.get_mut(&name) {
            space.reserve(user, size.space);
        }
        if let Some(job) = job.and_then(|id| self.jobs.get_mut(id)) {
            job.reserve(&name, size.space);
        }
    }
}
