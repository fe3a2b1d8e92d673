//! Nodes that take no new jobs, and the promise that was given before the planner was made.

use super::reservations::BackfillReservation;
use super::state::{PlannerJobStage, PlannerState};
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{JobId, SiteEventError};
use tarn_types::units::Time;

impl PlannerState {
    /// A node takes no new jobs. Its jobs stay, its data can be read; what is planned there is planned again.
    pub(crate) fn close(
        &mut self,
        node: NodeId,
        until: Option<Time>,
    ) -> Result<(), SiteEventError> {
        self.known_node(node)?;
        let until = until.unwrap_or(Time::MAX);
        if self.nodes.node(node).closed() == Some(until) {
            return Err(SiteEventError::ClosedAlready(node));
        }
        self.nodes.set_closed(node, Some(until));
        let planned: Vec<JobId> = self.nodes.node(node).planned.iter().copied().collect();
        for id in planned {
            self.unplan(id);
            self.enqueue(id);
        }
        Ok(())
    }

    /// A node takes jobs again.
    pub(crate) fn open(&mut self, node: NodeId) -> Result<(), SiteEventError> {
        self.known_node(node)?;
        if self.nodes.node(node).closed().is_none() {
            return Err(SiteEventError::OpenAlready(node));
        }
        let now = self.now;
        self.nodes.set_closed(node, None);
        self.nodes.node_mut(node).idle_since = now;
        Ok(())
    }

    /// An ordinary job that waits was promised a begin before.
    pub(crate) fn promise(&mut self, id: JobId, begin: Time) -> Result<(), SiteEventError> {
        if !matches!(self.policy.order, Order::Data | Order::Energy) {
            return Err(SiteEventError::NoPromises);
        }
        let state = self.job(id).ok_or(SiteEventError::UnknownJob(id))?;
        let waits = matches!(
            state.stage,
            PlannerJobStage::Queued | PlannerJobStage::Planned
        );
        if !waits || state.job.flow.is_some() {
            return Err(SiteEventError::NotPromised(id));
        }
        let known = self.promises.promise().map(|p| (p.job, p.begin));
        let begin = match known {
            Some((other, _)) if other != id => return Err(SiteEventError::OtherPromise(other)),
            Some((_, known)) => begin.min(known),
            None => begin,
        };
        let now = self.waiting(id).and_then(|w| self.earliest(&w));
        self.promises.set(Some(BackfillReservation {
            job: id,
            begin,
            now,
            seen: (self.now, self.nodes.changes()),
        }));
        Ok(())
    }
}
