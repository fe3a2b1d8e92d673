//! Data that the host found, moved or dropped by itself.

use super::items::{each, one_way};
use super::state::{PlannerJobStage, PlannerState};
use tarn_types::site::{ItemId, JobId, JobNodes, SiteEventError, Spread};

impl PlannerState {
    /// An item is on these nodes, or outside.
    pub(crate) fn stored(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
        bytes: u64,
    ) -> Result<(), SiteEventError> {
        self.may_be_on(nodes)?;
        self.may_have_bytes(id, bytes)?;
        if self.item(id).is_none() {
            return Err(SiteEventError::UnknownItem(id));
        }
        let more = each(bytes, nodes.len(), one_way(nodes, spread));
        let used = |n| self.nodes.node(n).space().used();
        if nodes.iter().any(|n| used(*n).checked_add(more).is_none()) {
            return Err(SiteEventError::TooManyBytes(id));
        }
        if let Some(item) = self.item_mut(id) {
            item.item.bytes = bytes;
            item.outside |= nodes.is_empty();
        }
        if !nodes.is_empty() {
            self.lay_found(id, nodes, one_way(nodes, spread));
        }
        let producer = self.item(id).and_then(|i| i.producer);
        let makes = |p: JobId| {
            self.job(p)
                .is_some_and(|s| s.stage != PlannerJobStage::Done)
        };
        if !producer.is_some_and(makes) {
            self.made(id);
        }
        self.refetch_readers(id);
        self.deliver(id);
        if let Some(producer) = producer.filter(|_| nodes.is_empty()) {
            self.settle(producer);
        }
        Ok(())
    }

    /// Puts a layout there, or corrects the bytes of the one that is there. A move that brings it is over.
    fn lay_found(&mut self, id: ItemId, nodes: &JobNodes, spread: Spread) {
        match self.items.coming(id, nodes, spread) {
            None => self.lay(id, nodes, spread, None),
            Some(coming) => {
                self.items.resize(&mut self.nodes, id, nodes, spread);
                coming.into_iter().for_each(|m| self.moved(m));
            }
        }
    }

    /// An item is not on these nodes any more, or not outside.
    pub(crate) fn gone(
        &mut self,
        id: ItemId,
        nodes: &JobNodes,
        spread: Spread,
    ) -> Result<(), SiteEventError> {
        nodes.iter().try_for_each(|n| self.known_node(*n))?;
        let item = self.item_mut(id).ok_or(SiteEventError::UnknownItem(id))?;
        if nodes.is_empty() {
            if !item.outside {
                return Err(SiteEventError::NotStored(id));
            }
            item.outside = false;
        } else if self.items.coming(id, nodes, spread) != Some(None) {
            return Err(SiteEventError::NotStored(id));
        } else {
            self.unlay(id, nodes, spread);
        }
        self.make_if_lost(id);
        // Those that counted on it look for it again.
        let readers = self.item(id).map(|i| i.readers.clone());
        for reader in readers.unwrap_or_default() {
            self.refetch(reader);
        }
        self.forget_unused(id);
        Ok(())
    }

    /// Forgets an item that no job names any more and that is nowhere.
    pub(crate) fn forget_unused(&mut self, id: ItemId) {
        let unused = self.item(id).is_some_and(|i| {
            let named = i.producer.is_some() || !i.readers.is_empty();
            let there = i.outside || i.leaving.is_some() || !i.layouts.is_empty();
            !named && !there
        });
        if unused {
            self.items.forget(id);
        }
    }
}
