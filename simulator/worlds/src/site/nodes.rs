//! Nodes: their memory modes, sleep, loss, and links that become slow.

use super::faults::SlowResource;
use super::fluid::rate_of;
use super::jobs::SimulatedJobPhase;
use super::plumbing::{self, NodePipe};
use super::power::PowerDrawState;
use super::{ScheduledSiteEvent, SimulatedSite, SiteEvent};
use tarn_ports::WorldError;
use tarn_types::account::sub;
use tarn_types::id::NodeId;
use tarn_types::site::{JobId, Mode, SpanOf};
use tarn_types::units::Time;

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimulatedNodeState {
    Up,
    Asleep,
    Waking,
    /// Into this mode.
    Booting(Mode),
    Lost,
}

impl SimulatedNodeState {
    fn is_away(self) -> bool {
        matches!(self, Self::Lost | Self::Waking | Self::Booting(_))
    }

    fn draw(self) -> PowerDrawState {
        match self {
            Self::Up => PowerDrawState::Awake,
            Self::Asleep => PowerDrawState::Asleep,
            Self::Waking | Self::Booting(_) => PowerDrawState::Boot,
            Self::Lost => PowerDrawState::Nothing,
        }
    }
}

/// A node.
#[derive(Debug)]
pub(super) struct NodeSlot {
    pub(super) mode: Mode,
    state: SimulatedNodeState,
    /// Since when it is not up.
    since: Time,
    /// The number of the event that ends its boot.
    boot: u64,
}

impl NodeSlot {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            state: SimulatedNodeState::Up,
            since: 0,
            boot: 0,
        }
    }

    /// Whether it is lost or boots.
    pub(super) fn is_up(&self) -> bool {
        self.state == SimulatedNodeState::Up
    }

    pub(super) fn is_away(&self) -> bool {
        self.state.is_away()
    }
}

impl SimulatedSite {
    /// A node goes from one state to another.
    fn turn(&mut self, node: NodeId, to: SimulatedNodeState) {
        let island = self.island_of[node.at()];
        let slot = &mut self.nodes[node.at()];
        let (from, since) = (slot.state, slot.since);
        slot.state = to;
        self.away = self.away + u32::from(to.is_away()) - u32::from(from.is_away());
        // Waking up belongs to the sleep before it.
        if (from, to) != (SimulatedNodeState::Asleep, SimulatedNodeState::Waking) {
            slot.since = self.now;
            self.node_span(node, from, since);
        }
        self.record
            .meter
            .change(self.now, island, from.draw(), to.draw());
    }

    fn node_span(&mut self, node: NodeId, state: SimulatedNodeState, since: Time) {
        let what = match state {
            SimulatedNodeState::Up => return,
            SimulatedNodeState::Asleep | SimulatedNodeState::Waking => SpanOf::Asleep,
            SimulatedNodeState::Booting(_) => SpanOf::Reboot,
            SimulatedNodeState::Lost => SpanOf::Lost,
        };
        self.record.span(what, &[node], since, self.now);
    }

    /// Spans of nodes that are not up at the end.
    pub(super) fn end_spans(&mut self) {
        for number in 0..self.nodes.len() {
            let slot = &self.nodes[number];
            self.node_span(NodeId(number as u32), slot.state, slot.since);
        }
    }

    fn expect(
        &self,
        node: NodeId,
        state: SimulatedNodeState,
        what: &str,
    ) -> Result<(), WorldError> {
        match self.nodes.get(node.at()).map(|n| n.state) {
            Some(found) if found == state => Ok(()),
            found => self.refuse(format!(
                "{what} node {node}, which is not {state:?} but {found:?}"
            )),
        }
    }

    pub(super) fn set_mode(&mut self, node: NodeId, mode: Mode) -> Result<(), WorldError> {
        self.expect(node, SimulatedNodeState::Up, "reboots")?;
        let Some(change) = self.kind(node).mode_change else {
            return self.refuse(format!(
                "changes the memory mode of node {node}, which cannot"
            ));
        };
        if self.kind(node).tiers.iter().any(|t| t.app_direct) {
            self.space.lose(node);
        }
        self.record.result.mode_changes += 1;
        self.turn(node, SimulatedNodeState::Booting(mode));
        let number = self.at(
            self.now.saturating_add(change.time),
            ScheduledSiteEvent::Boot(node),
        );
        self.nodes[node.at()].boot = number;
        Ok(())
    }

    pub(super) fn sleep(&mut self, node: NodeId) -> Result<(), WorldError> {
        self.expect(node, SimulatedNodeState::Up, "puts to sleep")?;
        self.turn(node, SimulatedNodeState::Asleep);
        Ok(())
    }

    pub(super) fn wake(&mut self, node: NodeId) -> Result<(), WorldError> {
        self.expect(node, SimulatedNodeState::Asleep, "wakes")?;
        self.turn(node, SimulatedNodeState::Waking);
        let wake = self.kind(node).power.wake;
        let number = self.at(
            self.now.saturating_add(wake),
            ScheduledSiteEvent::Boot(node),
        );
        self.nodes[node.at()].boot = number;
        Ok(())
    }

    pub(super) fn booted(&mut self, node: NodeId, number: u64) -> Option<SiteEvent> {
        let slot = &self.nodes[node.at()];
        if slot.boot != number {
            return None;
        }
        let state = slot.state;
        match state {
            SimulatedNodeState::Waking => {
                self.turn(node, SimulatedNodeState::Up);
                Some(SiteEvent::Awake { node })
            }
            SimulatedNodeState::Booting(mode) => {
                self.turn(node, SimulatedNodeState::Up);
                let ok = !self.faults.of_mode(self.now, number);
                if ok {
                    self.nodes[node.at()].mode = mode;
                }
                Some(SiteEvent::ModeSet { node, ok })
            }
            SimulatedNodeState::Up | SimulatedNodeState::Asleep | SimulatedNodeState::Lost => None,
        }
    }

    /// Plans the next loss of a node.
    pub(super) fn plan_loss(&mut self) {
        if let Some(at) = self.faults.loss_at(self.now, self.losses) {
            self.at(at, ScheduledSiteEvent::Lose);
        }
    }

    /// A node is lost: programs there end, moves there fail, its data is gone.
    pub(super) fn lose_one(&mut self) -> Option<SiteEvent> {
        let node = self.faults.loss_of(self.losses, self.nodes.len() as u32);
        self.losses += 1;
        self.plan_loss();
        if self.nodes.get(node.at())?.state == SimulatedNodeState::Lost {
            return None;
        }
        // A job that has ended well and writes nothing any more only lends its nodes to the rest of its script.
        let lost: Vec<JobId> = (0u32..)
            .zip(&self.jobs)
            .filter(|(_, slot)| {
                let there = slot.live.as_ref().filter(|l| l.nodes.contains(&node));
                there.is_some_and(|l| {
                    slot.phase != SimulatedJobPhase::Ended { ok: true } || l.moves > 0
                })
            })
            .map(|(number, _)| JobId(number))
            .collect();
        for slot in 0..self.moving.len() {
            let touched = self.moving[slot].as_ref().is_some_and(|m| m.touches(node));
            if let Some(moving) = touched.then(|| self.take_stream(slot as u32)).flatten() {
                self.undo(moving);
            }
        }
        for job in lost {
            self.stop_program(job, false);
        }
        self.space.lose(node);
        self.turn(node, SimulatedNodeState::Lost);
        self.nodes[node.at()].boot = 0;
        let back = self.now.saturating_add(self.faults.loss_for);
        self.at(back, ScheduledSiteEvent::Back(node));
        Some(SiteEvent::NodeLost { node })
    }

    pub(super) fn back(&mut self, node: NodeId) -> Option<SiteEvent> {
        self.turn(node, SimulatedNodeState::Up);
        self.nodes[node.at()].mode = self.kind(node).mode;
        Some(SiteEvent::NodeBack { node })
    }

    /// Plans the next slow-down.
    pub(super) fn plan_slow_down(&mut self) {
        if let Some(at) = self.faults.slow_at(self.now, self.slow_downs) {
            self.at(at, ScheduledSiteEvent::Slow);
        }
    }

    pub(super) fn slow_down(&mut self) -> Option<SiteEvent> {
        let what = self
            .faults
            .slow_of(self.slow_downs, self.nodes.len() as u32);
        self.slow_downs += 1;
        self.plan_slow_down();
        *self.slow.entry(what).or_default() += 1;
        self.set_speed(what, self.faults.slow_to);
        let over = self.now.saturating_add(self.faults.slow_for);
        self.at(over, ScheduledSiteEvent::SlowOver(what));
        None
    }

    pub(super) fn slow_over(&mut self, what: SlowResource) -> Option<SiteEvent> {
        let times = self.slow.entry(what).or_default();
        sub(times, 1, "slow-downs");
        if *times == 0 {
            self.slow.remove(&what);
            self.set_speed(what, 1.0);
        }
        None
    }

    fn set_speed(&mut self, what: SlowResource, share: f64) {
        let store = self.machine.store;
        let pipes = match what {
            SlowResource::Store => vec![
                (plumbing::STORE_READ, store.rates.read),
                (plumbing::STORE_WRITE, store.rates.write),
            ],
            SlowResource::Links(node) => {
                let link = self.kind(node).link;
                let each = [
                    (NodePipe::ClientIn, store.client.read),
                    (NodePipe::ClientOut, store.client.write),
                    (NodePipe::LinkIn, link.read),
                    (NodePipe::LinkOut, link.write),
                ];
                each.map(|(which, rate)| (plumbing::pipe(node, which), rate))
                    .to_vec()
            }
        };
        for (pipe, rate) in pipes.into_iter().filter(|p| p.1 > 0) {
            let slowed = ((rate as f64 * share) as u64).max(1);
            self.fluid.set_capacity(pipe, rate_of(slowed));
        }
    }
}
