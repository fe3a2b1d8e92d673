//! Acts of administrators, users and the host's own data service.

use super::{HostedSite, OWN_MOVES};
use std::sync::Arc;
use tarn_ports::WorldError;
use tarn_types::id::NodeId;
use tarn_types::site::{
    ItemId, Job, JobId, JobNodes, Move, MoveId, NodeMask, SiteAction, SiteEvent, Spread, Urgency,
    Where,
};

impl HostedSite {
    pub(super) fn whim(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        match self.random.below(9) {
            0 => Ok(self.drain()),
            1 => self.cancel_waiting(),
            2 => Ok(self.hold()),
            3 => self.stop_running(true),
            4 => self.stop_running(false),
            5 => Ok(self.change()),
            6 => self.copy().map(|()| None),
            7 => self.lose(),
            _ => Ok(self.drain_longer()),
        }
    }

    fn any<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        match of.len() as u64 {
            0 => None,
            len => of.get(self.random.below(len) as usize).cloned(),
        }
    }

    fn drain(&mut self) -> Option<SiteEvent> {
        let count = self.site.nodes.len() as u64;
        let node = NodeId(self.random.below(count) as u32);
        if self.closed.contains_key(&node) || self.closed.len() as u64 * 2 >= count {
            return None;
        }
        let until = self.site.now + self.seconds(10, 900);
        self.closed.insert(node, until);
        let until = self.percent(50).then_some(until);
        Some(SiteEvent::Closed { node, until })
    }

    fn drain_longer(&mut self) -> Option<SiteEvent> {
        let closed: Vec<NodeId> = self.closed.keys().copied().collect();
        let node = self.any(&closed)?;
        let until = self.site.now + self.seconds(901, 1000);
        let before = self.closed.insert(node, until);
        (before != Some(until)).then_some(SiteEvent::Closed {
            node,
            until: Some(until),
        })
    }

    /// A job of the host's that waits.
    fn any_waiting(&mut self) -> Option<JobId> {
        let waits = self
            .jobs
            .iter()
            .filter(|(id, j)| j.held_until.is_none() && !self.running.contains_key(id));
        let waiting: Vec<JobId> = waits.map(|(id, _)| *id).collect();
        self.any(&waiting)
    }

    fn any_running(&mut self) -> Option<JobId> {
        let own = self.running.keys().filter(|id| self.own.contains(id));
        let running: Vec<JobId> = own.copied().collect();
        self.any(&running)
    }

    fn cancel_waiting(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        let Some(job) = self.any_waiting() else {
            return Ok(None);
        };
        self.jobs.remove(&job);
        self.wishes.remove(&job);
        self.order(&SiteAction::GiveUp { job })?;
        Ok(Some(SiteEvent::Withdrawn { job }))
    }

    fn hold(&mut self) -> Option<SiteEvent> {
        let job = self.any_waiting()?;
        let until = self.site.now + self.seconds(5, 300);
        self.wishes.remove(&job);
        self.jobs.get_mut(&job)?.held_until = Some(until);
        Some(SiteEvent::Withdrawn { job })
    }

    /// A job is requeued, or cancelled.
    fn stop_running(&mut self, cancelled: bool) -> Result<Option<SiteEvent>, WorldError> {
        let Some(job) = self.any_running() else {
            return Ok(None);
        };
        self.site.stop_program(job, false);
        self.order(&SiteAction::Release { job })?;
        self.running.remove(&job);
        if cancelled {
            self.jobs.remove(&job);
            self.order(&SiteAction::GiveUp { job })?;
            self.ready.push_back(SiteEvent::Withdrawn { job });
        }
        let (ok, sizes) = (false, Vec::new());
        Ok(Some(SiteEvent::Ended { job, ok, sizes }))
    }

    fn change(&mut self) -> Option<SiteEvent> {
        let job = match self.percent(50) {
            true => self.any_running()?,
            false => self.any_waiting()?,
        };
        let mut spec = Job::clone(&self.jobs.get(&job)?.spec);
        let has_nodes = self.running.contains_key(&job) || self.wishes.contains_key(&job);
        match self.random.below(4) {
            _ if has_nodes => spec.limit += spec.limit / 2,
            0 => spec.limit *= 2,
            1 => {
                let place = self.site.now.saturating_sub(self.seconds(0, 600));
                // No two jobs have the same.
                spec.place = Some(place + u64::from(job.0));
            }
            2 => spec.not_before = self.site.now + self.seconds(1, 300),
            _ => spec.on = self.fewer_nodes(&spec),
        }
        let spec = Arc::new(spec);
        if let Some(known) = self.jobs.get_mut(&job) {
            known.spec = spec.clone();
        }
        if let Some((known, _)) = self.running.get_mut(&job) {
            *known = spec.clone();
        }
        Some(SiteEvent::Changed { job, spec })
    }

    /// All nodes but one, if that leaves enough in each island.
    fn fewer_nodes(&mut self, job: &Job) -> Option<Arc<NodeMask>> {
        let count = self.site.nodes.len() as u32;
        let without = NodeId(self.random.below(count.into()) as u32);
        let island = self.site.island_of[without.at()];
        let left = self.site.machine.islands[usize::from(island)].nodes - 1;
        let mask = (0..count).map(NodeId).filter(|n| *n != without);
        (left >= job.nodes).then(|| Arc::new(mask.collect()))
    }

    /// A layout of an item that is there.
    fn any_layout(&mut self) -> Option<(ItemId, JobNodes, Spread)> {
        let items = (0..self.site.work.items.len() as u32).map(ItemId);
        let there = items.flat_map(|i| {
            let layouts = self.site.space.layouts(i).iter();
            layouts.map(move |l| (i, l.nodes.clone(), l.spread))
        });
        let there: Vec<_> = there.collect();
        self.any(&there)
    }

    /// The host begins to copy an item to another node.
    fn copy(&mut self) -> Result<(), WorldError> {
        let Some((item, from, _)) = self.any_layout() else {
            return Ok(());
        };
        let to = NodeId(self.random.below(self.site.nodes.len() as u64) as u32);
        let bytes = self.site.space.bytes(item);
        let tiers = self.site.kind(to).tiers.iter().map(|t| t.capacity);
        let half = tiers.sum::<u64>() / 2;
        let has = self
            .site
            .space
            .layouts(item)
            .iter()
            .any(|l| l.nodes.contains(&to));
        let full = self.site.space.fill(to).saturating_add(bytes) > half;
        if has || full || !self.site.nodes[to.at()].is_up() || from.contains(&to) {
            return Ok(());
        }
        let id = MoveId(OWN_MOVES + self.random.below(OWN_MOVES));
        let to: JobNodes = Arc::from([to]);
        self.order(&SiteAction::Move(Move {
            id,
            item,
            bytes,
            from: Where::Nodes(from),
            to: Where::Nodes(to.clone()),
            spread: Spread::Share,
            streams: 1,
            direct: false,
            job: None,
            urgency: Urgency::Spare,
        }))?;
        self.copies.insert(id, (item, to));
        Ok(())
    }

    /// Data goes: what is elsewhere too.
    fn lose(&mut self) -> Result<Option<SiteEvent>, WorldError> {
        let Some((item, nodes, spread)) = self.any_layout() else {
            return Ok(None);
        };
        let elsewhere = self.site.space.layouts(item).len() > 1;
        if !elsewhere && !self.site.work.items[item.at()].item.outside {
            return Ok(None);
        }
        let from = Where::Nodes(nodes.clone());
        let reading = self.moving.values();
        let reading = reading.filter(|m| m.item == item && m.from == from);
        for id in reading.map(|m| m.id).collect::<Vec<_>>() {
            self.order(&SiteAction::Cancel { id })?;
        }
        self.order(&SiteAction::Drop {
            item,
            nodes: nodes.clone(),
            spread,
        })?;
        Ok(Some(SiteEvent::Gone {
            item,
            nodes,
            spread,
        }))
    }
}
