//! What the accounts of the planner say, counted again.

use super::nodes::Power;
use super::state::{Stage, State};
use std::collections::BTreeMap;
use tarn_types::id::NodeId;
use tarn_types::site::ItemId;

/// Where there are more jobs, items or nodes than this, they are not counted: it is done after each event.
const MOST: usize = 256;

impl State {
    /// Counts what jobs, layouts and moves have taken, and compares it with the accounts.
    ///
    /// # Panics
    /// When they differ: something was given back twice, or is never given back.
    pub(crate) fn check_accounts(&self) {
        if [self.jobs.len(), self.items.len(), self.nodes.all.len()]
            .iter()
            .any(|n| *n > MOST)
        {
            return;
        }
        self.check_space();
        self.check_compute();
        self.check_pins();
        self.check_under_way();
        self.check_jobs();
    }

    fn check_space(&self) {
        let mut used: BTreeMap<NodeId, u64> = BTreeMap::new();
        for layout in self.items.iter().flatten().flat_map(|i| &i.layouts) {
            for node in layout.nodes.iter() {
                *used.entry(*node).or_default() += layout.each;
            }
        }
        let mut reserved: BTreeMap<NodeId, u64> = BTreeMap::new();
        for job in self.jobs.iter().flatten().filter(|j| j.promised > 0) {
            for node in job.nodes.iter() {
                *reserved.entry(*node).or_default() += job.promised;
            }
        }
        for (id, node) in (0..).map(NodeId).zip(&self.nodes.all) {
            let counted = |of: &BTreeMap<NodeId, u64>| of.get(&id).copied().unwrap_or(0);
            assert_eq!(node.space.used(), counted(&used), "bytes used of {id}");
            let promised = counted(&reserved);
            assert_eq!(node.space.reserved(), promised, "bytes promised of {id}");
        }
    }

    fn check_compute(&self) {
        for (id, node) in (0..).map(NodeId).zip(&self.nodes.all) {
            let mut free = self.nodes.all_of(id);
            node.guests.iter().for_each(|guest| free.take(guest.share));
            assert_eq!(node.free, free, "free cores, memory and GPUs of {id}");
        }
    }

    fn check_pins(&self) {
        let mut counted: BTreeMap<(ItemId, u64), u32> = BTreeMap::new();
        let of_jobs = self.jobs.iter().flatten().flat_map(|j| &j.pinned);
        let of_moves = self.outbox.orders().filter_map(|o| o.reads.as_ref());
        for pin in of_jobs.chain(of_moves) {
            *counted.entry((pin.item, pin.layout)).or_default() += 1;
        }
        for (item, state) in (0..).map(ItemId).zip(&self.items) {
            for layout in state.iter().flat_map(|i| &i.layouts) {
                let pins = counted.get(&(item, layout.number)).copied().unwrap_or(0);
                assert_eq!(layout.pins, pins, "pins of item {item}");
            }
        }
    }

    fn check_under_way(&self) {
        self.outbox.check();
        let has_nodes = |s: Stage| {
            matches!(
                s,
                Stage::Staging | Stage::Running | Stage::Draining | Stage::Handed
            )
        };
        let jobs = self.jobs.iter().flatten();
        let jobs = jobs.filter(|j| has_nodes(j.stage)).count();
        let changes = |p: Power| matches!(p, Power::Waking | Power::Booting(_));
        let nodes = self.nodes.all.iter().filter(|n| changes(n.power)).count();
        let counted = jobs + nodes + self.outbox.orders().count();
        assert_eq!(self.under_way as usize, counted, "things under way");
    }

    fn check_jobs(&self) {
        for (id, flow) in &self.flows {
            let jobs = flow.jobs.iter().filter_map(|j| self.job(*j));
            let left = jobs.filter(|j| j.stage != Stage::Done).count();
            assert_eq!(flow.left as usize, left, "jobs left of workflow {id:?}");
        }
    }
}
