//! The external store is one for all nodes: its bound of transfers at once is that of all of them together, and so is the
//! rate that it is emulated with (`--external-rate`).

use crate::dispatch::ActionPerformer;
use crate::external_queue::touches_store;
use crate::world::AllocationWorld;
use tarn_ports::WorldError;
use tarn_proto::node::NodeCommand;
use tarn_types::action::Action;
use tarn_types::id::TransferId;
use tarn_types::part::Transfer;

impl AllocationWorld {
    /// Whether a transfer has to wait for others; then it is kept for later.
    pub(crate) fn waits_for_store(&mut self, action: &Action, t: &Transfer) -> bool {
        if !touches_store(t) {
            return false;
        }
        let by = self.under_way.moving.get(&t.id);
        let by = by.map_or(ActionPerformer::Home, |m| m.by);
        let streams = self.external_streams();
        if self.store.begin(t.id, by, streams) {
            self.pace();
            return false;
        }
        self.store.wait(t, action.clone());
        true
    }

    fn external_streams(&self) -> usize {
        self.node_config.cluster.external.streams.max(1) as usize
    }

    /// Whether a transfer has not been sent to anybody yet.
    pub(crate) fn is_waiting(&self, t: &Transfer) -> bool {
        self.store.is_waiting(t) || self.chains.is_waiting(t.id)
    }

    /// Hands out those that may begin now.
    pub(crate) fn hand_out(&mut self) -> Result<(), WorldError> {
        while let Some((id, action)) = self.chains.next() {
            if let Some(by) = self.under_way.moving.get(&id).map(|m| m.by) {
                self.hand(by, &action)?;
            }
        }
        let streams = self.external_streams();
        while self.store.has_space(streams)
            && let Some((id, action)) = self.store.take()
        {
            let Some(moving) = self.under_way.moving.get(&id) else {
                continue;
            };
            let by = moving.by;
            let has_begun = self.store.begin(id, by, streams);
            debug_assert!(has_begun, "a transfer was handed out beyond the streams");
            self.pace();
            self.hand(by, &action)?;
        }
        self.pace();
        Ok(())
    }

    /// Sends its share of the store to each performer that emulates the store's rate: as many streams as each has of all.
    fn pace(&mut self) {
        if !self.node_config.cluster.external.emulated {
            return;
        }
        let changed = self.store.take_changed_shares();
        for (by, own, all) in changed {
            match by {
                ActionPerformer::Home => self.home.pace(own, all),
                ActionPerformer::Node(n) => self.send_command(n, NodeCommand::Pace { own, all }),
            }
        }
    }

    /// A transfer that nobody has begun yet is abandoned. False if somebody has.
    pub(crate) fn abandon_queued(&mut self, id: TransferId) -> bool {
        let moving = self.under_way.moving.get(&id);
        if !moving.is_some_and(|m| self.is_waiting(&m.order)) {
            return false;
        }
        self.give_up(id, "abandoned before it began".into());
        true
    }
}
