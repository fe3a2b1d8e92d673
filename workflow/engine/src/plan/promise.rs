//! The promise to the first ordinary job that waits: workflows that came after it may stand before it in the queue
//! (`lead`), but delay it by no more than `bound`. One job at a time has a promise, the next once that one has nodes.

use super::nodes::last_end;
use super::queue::QueuedJob;
use super::reservations::BackfillReservation;
use super::state::{PlannerJobStage, PlannerState};
use super::view::Shadow;
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{Job, JobId};
use tarn_types::units::Time;

impl PlannerState {
    /// A job has come into the queue, or left it.
    pub(crate) fn note_ordinary(&mut self, id: JobId, waits: bool) {
        if !matches!(self.policy.order, Order::Data | Order::Energy) {
            return;
        }
        let Some(key) = self.job(id).filter(|s| s.job.flow.is_none()).map(|s| s.key) else {
            return;
        };
        self.promises.note_queued(key, id, waits);
    }

    /// The job that has the promise. If nobody has one any more, the first ordinary job of the queue gets a promise of
    /// the begin that it would have if no waiting job went before it; that becomes sooner when others end before their
    /// limits.
    pub(crate) fn promised(&mut self) -> Option<QueuedJob> {
        let kept = self.promises.promise().map(|p| p.job).filter(|id| {
            let stage = self.job(*id).map(|s| s.stage);
            matches!(
                stage,
                Some(PlannerJobStage::Queued | PlannerJobStage::Planned)
            )
        });
        let Some(job) = kept.or_else(|| self.promises.queued().next()) else {
            self.promises.set(None);
            return None;
        };
        let w = self.waiting(job)?;
        let seen = (self.now, self.nodes.changes());
        let known = self.promises.promise().filter(|_| kept.is_some());
        let begin = match known {
            Some(p) if p.seen == seen => return Some(w),
            Some(p) => p.begin,
            None => Time::MAX,
        };
        let now = self.earliest(&w);
        let begin = now.as_ref().map_or(begin, |now| begin.min(now.at));
        self.promises.set(Some(BackfillReservation {
            job,
            begin,
            now,
            seen,
        }));
        Some(w)
    }

    /// Whether a workflow came after a job: where it goes first, it overtakes it.
    fn came_after(&self, w: JobId, first: JobId) -> bool {
        let Some((state, first)) = self.job(w).zip(self.job(first)) else {
            return false;
        };
        let flow = state.job.flow.and_then(|flow| self.flows.get(&flow));
        flow.is_some_and(|flow| {
            let came = match state.job.place {
                Some(_) => state.place(),
                None => flow.arrival_of(state),
            };
            came > first.place()
        })
    }

    /// Whether a workflow came after the ordinary job that has waited longest.
    pub(crate) fn overtakes(&self, w: JobId) -> bool {
        let first = self.promises.first();
        first.is_some_and(|first| self.came_after(w, first))
    }

    /// Until when a job may delay the one with the promise: a workflow's step that came later and goes first until the
    /// bound, a job behind it not at all. `None`: as it likes.
    fn may_delay(&mut self, w: &QueuedJob) -> Option<(QueuedJob, Time)> {
        let first = self.promised()?;
        if first.job == w.job {
            return None;
        }
        let promise = self.promises.promise()?;
        let now = promise.now.as_ref()?.at;
        if w.key > first.key {
            return Some((first, now));
        }
        let latest = promise.begin.saturating_add(self.policy.bound).max(now);
        self.came_after(w.job, first.job).then_some((first, latest))
    }

    /// Whether a job that took these nodes until then would delay the promised one more than it may.
    pub(crate) fn breaks_promise(&mut self, w: &QueuedJob, nodes: &[NodeId], until: Time) -> bool {
        let Some((first, latest)) = self.may_delay(w) else {
            return false;
        };
        let now = self.promises.promise().and_then(|p| p.now.as_ref());
        let (Some(now), Some(job), Some(taker)) = (now, self.job(first.job), self.job(w.job))
        else {
            return false;
        };
        let then = self.begin_behind(&job.job, now, &taker.job, nodes, until);
        then.is_none_or(|then| then > latest)
    }

    /// Whether a job that waits for its shadow would, from then on, delay the promised one more than it may.
    pub(crate) fn shadow_breaks_promise(&mut self, w: &QueuedJob, shadow: &Shadow) -> bool {
        let Some((first, latest)) = self.may_delay(w) else {
            return false;
        };
        // A job behind the promised one has no shadow before it.
        let behind = w.key > first.key;
        let now = self.promises.promise().and_then(|p| p.now.as_ref());
        if behind || now.is_none_or(|now| now.class != shadow.class) {
            return false;
        }
        let until = shadow.at.saturating_add(w.limit);
        let then = match first.cores {
            0 => self.earliest_behind(&first, shadow.class, w.nodes, until),
            _ => None,
        };
        then.is_none_or(|then| then.at > latest)
    }

    /// When a job could begin (`now` as things are) if another took nodes until then.
    fn begin_behind(
        &self,
        job: &Job,
        now: &Shadow,
        taker: &Job,
        nodes: &[NodeId],
        until: Time,
    ) -> Option<Time> {
        if job.nodes == 1 && job.cores > 0 {
            if !now.keeps.iter().any(|n| nodes.contains(n)) {
                return Some(now.at);
            }
            let taken = Some((nodes, until, taker));
            let shadows = self.nodes.classes_for(job).into_iter();
            let ends = shadows.filter_map(|(i, m)| Some(self.node_earliest(job, i, m, taken)?.at));
            return ends.min();
        }
        // A node that others keep for longer is no later free.
        let longer = |n: &&NodeId| job.may_have(**n) && last_end(self.nodes.node(**n)) < until;
        let taken = nodes.iter().filter(longer).count() as u32;
        let first = nodes.first().filter(|_| taken > 0);
        let Some(class) = first.map(|n| self.class_of(*n)) else {
            return Some(now.at);
        };
        self.classes_earliest(job, class, taken, until)
            .map(|s| s.at)
    }

    /// A job that was promised a begin waits again: it has its promise, unless one before it has one.
    pub(crate) fn promise_again(&mut self, job: JobId, begin: Time) {
        let key = |id: JobId| self.job(id).map(|s| s.key);
        let other = self.promises.promise().map(|p| p.job);
        if other.is_some_and(|other| key(other) < key(job)) {
            return;
        }
        self.promises.set(Some(BackfillReservation {
            job,
            begin,
            now: None,
            // It is looked at at the next decision.
            seen: (Time::MAX, 0),
        }));
    }

    /// Before every decision: a job that has the promise and is only planned takes free nodes once its time has come.
    pub(crate) fn keep_promise(&mut self) {
        self.promised();
        let Some((job, begin)) = self.promises.promise().map(|p| (p.job, p.begin)) else {
            return;
        };
        let planned = self
            .job(job)
            .is_some_and(|s| s.stage == PlannerJobStage::Planned);
        if planned && self.now < begin {
            self.remind(begin);
        } else if planned {
            self.unplan(job);
            self.enqueue(job);
        }
    }

    /// Whether a job was promised to begin by now.
    pub(crate) fn is_due(&self, id: JobId) -> bool {
        let promise = self.promises.promise();
        promise.is_some_and(|p| p.job == id && p.begin <= self.now)
    }
}
