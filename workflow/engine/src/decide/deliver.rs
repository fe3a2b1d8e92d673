//! Deliveries and copies: last versions go to their `dest`, further replicas are made for `copies`.

use super::Decide;
use tarn_types::action::Subject;
use tarn_types::id::{DataId, NodeId, TierId, TierRef};
use tarn_types::part::{PartMove, PartRef, Place, TransferKind, Verify};
use tarn_types::policy::DataMode;
use tarn_types::reason::Reason;

impl Decide<'_> {
    pub(super) fn deliver(&mut self) {
        for data in self.state.undelivered.clone() {
            let last = self.state.start.workflow.last_version(data);
            let version = self.state.data.version(data, last);
            let dest = self.state.start.workflow.dataset(data).dest.clone();
            let given_up = self.state.given_up.all.contains(&Subject::Data(data));
            let goes = version.sealed && !version.delivered && !given_up;
            let Some(dest) = dest.filter(|_| goes) else {
                continue;
            };
            self.send_out(data, last, Place::External(dest), Reason::Deliver);
        }
    }

    /// Sends a whole version to one place outside, if that is not under way and has not failed for good. After a
    /// failure of the run, a part that has failed to move before is not tried again, but for the one attempt of a
    /// rescue.
    pub(super) fn send_out(&mut self, data: DataId, version: u32, to: Place, why: Reason) {
        let under_way = self.state.transfers.values().any(|t| {
            // A place that is read is not exchanged meanwhile.
            let read = || t.transfer.parts.iter().any(|m| m.from == to);
            t.transfer.data == data && (t.transfer.to == to || read())
        });
        let parts: Vec<_> = self.named_parts(data, version);
        if under_way || parts.is_empty() {
            return;
        }
        let mut moves = Vec::with_capacity(parts.len());
        for name in parts {
            let Some(part) = self.state.data.part(name) else {
                continue;
            };
            if part.is_lost() && self.state.stop.is_none() {
                self.make_again(name);
                return;
            }
            if part.rests_until > self.state.now && self.state.stop.is_none() {
                let at = part.rests_until;
                return self.look_again(at);
            }
            let rescues = why == Reason::Rescue;
            let tries = self.state.stop.is_none() || part.failures == 0 || rescues;
            let from = match rescues {
                true => part.rescued_from(),
                false => part.nearest(),
            };
            match from.cloned() {
                Some(from) if tries => moves.push(PartMove { part: name, from }),
                // Of an incomplete version, the parts that are there are rescued.
                None if rescues => {}
                _ => return,
            }
        }
        if moves.is_empty() {
            return;
        }
        self.transfer(
            moves,
            to,
            TransferKind::ExternalOut,
            Verify::Readback,
            0,
            why,
        );
    }

    pub(super) fn named_parts(&self, data: DataId, version: u32) -> Vec<PartRef> {
        let parts = self.state.data.version(data, version).parts.keys();
        parts
            .map(|&(origin, seq)| PartRef {
                data,
                version,
                origin,
                seq,
            })
            .collect()
    }

    /// Replicas on further nodes, where space is free without removals. While an instance waits for space there are
    /// none: they would take the space just freed for it, and be evicted again.
    pub(super) fn copies(&mut self) {
        if self.state.data_mode() != DataMode::Keep
            || self.state.stop.is_some()
            || self.short_of_space
        {
            return;
        }
        let wanting = (0u32..)
            .zip(&self.state.start.workflow.data)
            .filter(|(_, d)| d.copies > 1);
        for (data, copies) in wanting
            .map(|(i, d)| (DataId(i), d.copies))
            .collect::<Vec<_>>()
        {
            for version in 0..=self.state.start.workflow.last_version(data) {
                for name in self.named_parts(data, version) {
                    self.copy_part(name, copies);
                }
            }
        }
    }

    fn copy_part(&mut self, name: PartRef, wanted: u32) {
        let Some(part) = self.state.data.part(name) else {
            return;
        };
        if super::release::unneeded(self.state, name, part) || self.is_remade(name) {
            return;
        }
        let nodes: std::collections::BTreeSet<NodeId> = part
            .replicas
            .keys()
            .filter_map(|p| match p {
                Place::Node(s) => Some(s.node),
                _ => None,
            })
            .collect();
        if nodes.len() >= wanted as usize || part.failures > 0 {
            return;
        }
        let stored = part.info.stored;
        let others = self
            .all_nodes()
            .filter(|n| !nodes.contains(n))
            .map(|node| TierRef {
                node,
                tier: TierId(0),
            });
        let source = |to: TierRef| {
            let places = part.present().map(|(place, _)| place);
            let mut nodes = places.filter(|p| matches!(p, Place::Node(_)));
            let from = nodes.find(|p| !part.is_refused(Some(to.node), p))?;
            Some((to, from.clone()))
        };
        let roomy = others
            .filter(|s| self.free_but_for_cache(*s) >= stored)
            .filter_map(source);
        let roomy = roomy.max_by_key(|(s, _)| (self.free_but_for_cache(*s), std::cmp::Reverse(*s)));
        if let Some((to, from)) = roomy
            && self.is_free(to, stored)
        {
            let parts = vec![PartMove { part: name, from }];
            self.transfer(
                parts,
                Place::Node(to),
                TransferKind::Peer,
                Verify::Copy,
                0,
                Reason::Copies { wanted },
            );
        }
    }
}
