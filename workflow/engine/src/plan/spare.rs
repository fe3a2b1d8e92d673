//! Copies that may turn out useful: an item that several waiting jobs read and that one node alone has is copied to the
//! node that comes free next, while links have nothing better to do (after WOW, CCGrid 2025).

use super::items::ItemLayout;
use super::nodes::node_of;
use super::outbox::{MovePurpose, MoveRequest};
use super::queue::{Fit, QueuedJob};
use super::state::PlannerState;
use std::sync::Arc;
use tarn_types::id::NodeId;
use tarn_types::policy::Order;
use tarn_types::site::{ItemId, Job, Spread, Urgency, Where};

/// Waiting jobs whose inputs are looked at after an event.
const LOOKED_AT: usize = 4;

impl PlannerState {
    /// Orders at most one such copy.
    pub(crate) fn copy_ahead(&mut self) {
        let copies = matches!(self.policy.order, Order::Data | Order::Energy);
        if !copies || self.outbox.spare_under_way() {
            return;
        }
        let mut after: Option<QueuedJob> = None;
        for _ in 0..LOOKED_AT {
            let Some(w) = self
                .queue
                .next(after.as_ref(), &Fit::without_time_limit(u32::MAX, u32::MAX))
            else {
                return;
            };
            after = Some(w);
            let Some(job) = self.job(w.job).map(|s| s.job.clone()) else {
                return;
            };
            // Others take all nodes of their own at once, and bring their data then.
            if job.nodes > 1 || job.cores == 0 {
                continue;
            }
            if let Some((item, from, to)) = self.worth_copying(&job) {
                return self.copy(item, from, to);
            }
        }
    }

    fn worth_copying(&self, job: &Job) -> Option<(ItemId, ItemLayout, NodeId)> {
        let to = self.next_free(job)?;
        job.reads.iter().find_map(|input| {
            let item = self.item(input.item)?;
            let [only] = item.layouts.as_slice() else {
                return None;
            };
            let wanted = item.readers.len() > 1 && !item.outside;
            let idle = only.present() && only.pins == 0 && only.nodes.len() == 1;
            let space = self.nodes.free_space(to) / 2 >= item.item.bytes;
            let elsewhere = !only.has(to);
            (wanted && idle && space && elsewhere).then(|| (input.item, only.clone(), to))
        })
    }

    /// The node that is expected to be free for a job next.
    fn next_free(&self, job: &Job) -> Option<NodeId> {
        let classes = self.nodes.classes_for(job).into_iter();
        let ends = classes.filter_map(|(island, mode)| {
            let ends = self.nodes.class(island, mode).ends.iter();
            let mut ends = ends.filter_map(|(at, who, _)| Some((at, node_of(who)?)));
            ends.find(|(_, node)| job.may_have(*node))
        });
        let (_, node) = ends.min()?;
        self.nodes.node(node).ledger.is_usable().then_some(node)
    }

    fn copy(&mut self, item: ItemId, from: ItemLayout, to: NodeId) {
        let bytes = self.item(item).map_or(0, |i| i.item.bytes);
        let to: Arc<[NodeId]> = Arc::from([to]);
        let order = self.order(MoveRequest {
            item,
            bytes,
            from: Where::Nodes(from.nodes),
            to: Where::Nodes(to.clone()),
            spread: Spread::Share,
            direct: false,
            job: None,
            urgency: Urgency::Spare,
            purpose: MovePurpose::Spare,
        });
        self.lay(item, &to, Spread::Share, Some(order));
    }
}
