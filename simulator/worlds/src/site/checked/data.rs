//! The rules for orders about data, and about the nodes that hold it.

use super::super::space::ItemDistribution;
use super::SiteRuleViolation;
use super::state::{CheckedJobStage, CheckedMemoryEnd, CheckedNodeState, SiteAccount};
use tarn_types::id::NodeId;
use tarn_types::site::{ItemId, Mode, Move, Spread, Where};

impl SiteAccount {
    pub(super) fn start_move(&mut self, order: &Move) -> Result<(), SiteRuleViolation> {
        let what = format!("move {} of item {}", order.id.0, order.item);
        if self.moves.contains_key(&order.id) {
            let broken = format!("{what} has the number of another that is under way");
            return Err(("known ids", broken));
        }
        let memory = self.memory_end(order, &what)?;
        for place in [&order.from, &order.to] {
            if let Where::Nodes(nodes) = place {
                self.usable(&what, nodes)?;
            }
        }
        if memory != CheckedMemoryEnd::From {
            self.source(order, &what)?;
        }
        let copies = match (&order.to, order.spread) {
            (Where::Nodes(nodes), Spread::Whole) => nodes.len() as u64,
            _ => 1,
        };
        let most = self.item(order.item)?.bytes.saturating_mul(copies);
        if order.bytes > most {
            return Err((
                "bytes",
                format!("{what} carries {} bytes; all of it are {most}", order.bytes),
            ));
        }
        if let (Where::Nodes(nodes), true) = (&order.to, memory != CheckedMemoryEnd::To) {
            let layout = ItemDistribution::new(nodes, order.spread);
            let coming = self.moves.values().any(|(m, end)| {
                let to = matches!(&m.to, Where::Nodes(n) if ItemDistribution::new(n, m.spread) == layout);
                to && m.item == order.item && *end != CheckedMemoryEnd::To
            });
            if coming || self.item(order.item)?.layouts.contains(&layout) {
                return Err((
                    "one copy a place",
                    format!("{what} goes where it lies or comes already: {nodes:?}"),
                ));
            }
            self.take(&what, order.item, &layout)?;
        }
        self.moves.insert(order.id, (order.clone(), memory));
        Ok(())
    }

    /// A move reads a replica that is there.
    fn source(&self, order: &Move, what: &str) -> Result<(), SiteRuleViolation> {
        let item = self.item(order.item)?;
        let there = match &order.from {
            Where::Outside => item.outside,
            Where::Nodes(nodes) => item.layouts.iter().any(|l| l.nodes == *nodes),
        };
        if there {
            return Ok(());
        }
        Err((
            "moves read what is there",
            format!(
                "{what} reads it from {:?}; it lies on {:?}, outside: {}",
                order.from, item.layouts, item.outside
            ),
        ))
    }

    /// Which end of a move is the memory of a job.
    fn memory_end(&self, order: &Move, what: &str) -> Result<CheckedMemoryEnd, SiteRuleViolation> {
        if !order.direct {
            return Ok(CheckedMemoryEnd::None);
        }
        let direct = |how: String| Err(("direct moves", format!("{what} is direct {how}")));
        let Some(id) = order.job else {
            return direct("and for no job".into());
        };
        let row = self.job(id)?;
        let (end, place) = match row.stage {
            CheckedJobStage::Held => (CheckedMemoryEnd::To, &order.to),
            CheckedJobStage::Ended { ok: true } => (CheckedMemoryEnd::From, &order.from),
            stage => return direct(format!("and its job {id} is {stage:?}")),
        };
        let held: &[NodeId] = row.nodes.as_deref().unwrap_or_default();
        let Where::Nodes(nodes) = place else {
            return direct(format!("and not at the nodes of its job {id}"));
        };
        if !nodes.iter().all(|n| held.contains(n)) {
            return direct(format!(
                "on {nodes:?}, which are not all nodes of its job {id}: {held:?}"
            ));
        }
        if end == CheckedMemoryEnd::From && !row.job.writes.contains(&order.item) {
            return direct(format!("away from job {id}, which does not write it"));
        }
        Ok(end)
    }

    pub(super) fn drop_item(
        &mut self,
        id: ItemId,
        layout: &ItemDistribution,
    ) -> Result<(), SiteRuleViolation> {
        let what = format!("dropping item {id} from {:?}", layout.nodes);
        let item = self.item_mut(id)?;
        let Some(at) = item.layouts.iter().position(|l| l == layout) else {
            let layouts = &item.layouts;
            return Err((
                "drops what is there",
                format!("{what} ({:?}): it lies on {layouts:?}", layout.spread),
            ));
        };
        item.layouts.remove(at);
        let mut others = item.layouts.iter();
        let same_nodes = others.any(|l| l.nodes == layout.nodes);
        let read = self.moves.values().find(|(m, end)| {
            let from = matches!(&m.from, Where::Nodes(nodes) if *nodes == layout.nodes);
            m.item == id && from && *end != CheckedMemoryEnd::From && !same_nodes
        });
        if let Some((order, _)) = read {
            return Err((
                "nothing needed is lost",
                format!("{what} while move {} reads it", order.id.0),
            ));
        }
        self.give_back(id, layout)?;
        self.runs_undisturbed(&what, &[id])?;
        self.leased(&what, id, layout)?;
        self.still_there(&what, id)
    }

    /// A node is up and nobody uses it.
    pub(super) fn idle(&self, what: &str, node: NodeId) -> Result<(), SiteRuleViolation> {
        self.usable(what, &[node])?;
        let guests = &self.nodes[node.at()].guests;
        if !guests.is_empty() {
            return Err((
                "only idle nodes",
                format!("{what} node {node}, on which {guests:?} are"),
            ));
        }
        let uses = |w: &Where| matches!(w, Where::Nodes(nodes) if nodes.contains(&node));
        let moving = self
            .moves
            .values()
            .find(|(m, _)| uses(&m.from) || uses(&m.to));
        match moving {
            Some((order, _)) => Err((
                "only idle nodes",
                format!("{what} node {node}, which move {} uses", order.id.0),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn set_mode(&mut self, node: NodeId, mode: Mode) -> Result<(), SiteRuleViolation> {
        self.idle("reboots", node)?;
        let kind = self.kind(node);
        if kind.mode_change.is_none() || self.nodes[node.at()].mode == mode {
            return Err((
                "memory mode",
                format!("node {node} cannot be set to {mode:?}, or is in it"),
            ));
        }
        let lost = match kind.tiers.iter().any(|t| t.app_direct) {
            true => self.forget(node)?,
            false => Vec::new(),
        };
        for item in &lost {
            self.still_there(&format!("rebooting node {node}"), *item)?;
        }
        self.runs_undisturbed(&format!("rebooting node {node}"), &lost)?;
        self.nodes[node.at()].power = CheckedNodeState::Booting(mode);
        Ok(())
    }

    pub(super) fn wake(&mut self, node: NodeId) -> Result<(), SiteRuleViolation> {
        match self.nodes.get_mut(node.at()) {
            Some(state) if state.power == CheckedNodeState::Asleep => {
                state.power = CheckedNodeState::Waking;
                Ok(())
            }
            state => Err((
                "known ids",
                format!("node {node} is woken and is {:?}", state.map(|s| s.power)),
            )),
        }
    }
}
