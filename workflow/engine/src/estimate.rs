//! Estimates of unknown quantities: run times, sizes and how long a transfer takes. Observed where possible.

use crate::data::makes;
use crate::rank::upward_ranks;
use crate::state::EngineState;
use crate::steps::InstancePlacement;
use tarn_types::id::{DataId, InstanceId, NodeId, StepId};
use tarn_types::part::{PartRef, TransferKind};
use tarn_types::units::{Nanos, SECOND};
use tarn_types::workflow::Role;

/// Run time of a step of which nothing is known: of the order at which moving data begins to matter.
const UNKNOWN_RUN_TIME: Nanos = SECOND;
/// Bytes of an output of which nothing is known.
const UNKNOWN_BYTES: u64 = 1 << 20;

/// Nanoseconds that `bytes` take at `rate` bytes a second.
pub(crate) fn duration(bytes: u64, rate: u64) -> Nanos {
    let nanos = u128::from(bytes) * u128::from(SECOND) / u128::from(rate.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

impl EngineState {
    /// The mean of the step's observed times, else half its time limit, else the mean of all other steps of the
    /// workflow, else a constant.
    pub(crate) fn run_time(&self, step: StepId) -> Nanos {
        let mean = |(sum, n): (Nanos, u64)| sum.checked_div(n);
        let limit = self.start.workflow.step(step).time;
        mean(self.steps.all[step.at()].observed)
            .or(limit.map(|limit| limit / 2))
            .or(mean(self.steps.observed))
            .unwrap_or(UNKNOWN_RUN_TIME)
    }

    /// Computes all upward ranks again, from declared and, once there are some, observed sizes, and puts the waiting
    /// instances into their order.
    pub(crate) fn refresh_ranks(&mut self) {
        let steps = &self.start.workflow.steps;
        let edges = |i: usize| {
            let data = makes(&steps[i]).flat_map(|v| {
                let time = self.edge_time(v.0, v.1);
                let readers = self.readers.get(&v).into_iter().flatten();
                readers.map(move |r| (r.at(), time))
            });
            let followers = self.steps.followers.get(&StepId(i as u32));
            let control = followers.into_iter().flatten().map(|f| (f.at(), 0));
            data.chain(control).collect()
        };
        let run_time = |i: usize| self.run_time(StepId(i as u32));
        let ranks = upward_ranks(steps.len(), edges, run_time);
        self.steps.reorder(ranks);
    }

    /// How long a placed instance still keeps its cores. Something that is overdue is expected to take a tenth
    /// of its time more.
    pub(crate) fn time_left(&self, id: InstanceId, placed: &InstancePlacement) -> Nanos {
        let run_time = self.run_time(id.step);
        let end = match placed.started {
            Some(started) => started.saturating_add(run_time),
            None => placed.end,
        };
        match end.saturating_sub(self.now) {
            0 => run_time / 10,
            left => left,
        }
    }

    /// Bytes of a version: observed, declared or guessed.
    pub(crate) fn version_bytes(&self, data: DataId, version: u32) -> u64 {
        let v = self.data.version(data, version);
        if v.sealed {
            return v.bytes();
        }
        self.start
            .workflow
            .dataset(data)
            .size
            .unwrap_or(UNKNOWN_BYTES)
    }

    /// Time on an edge of the DAG if its ends are on different nodes.
    pub(crate) fn edge_time(&self, data: DataId, version: u32) -> Nanos {
        duration(
            self.version_bytes(data, version),
            self.start.cluster.peer.read,
        )
    }

    /// Bytes that an instance is expected to write on each of its nodes, and how many of them it must be
    /// able to write (the copy that keeps the pre-image of an `inout`).
    pub(crate) fn output_bytes(&self, id: InstanceId) -> (u64, u64) {
        let step = self.start.workflow.step(id.step);
        let state = &self.steps.all[id.step.at()];
        let count = state
            .instances
            .as_ref()
            .map_or(1, |i| i.len().max(1) as u64);
        let stored = |p: &PartRef| self.data.part(*p).map_or(0, |part| part.info.stored);
        let mut hard = 0u64;
        let mut inputs = 0u64;
        if let Some(instance) = self.steps.instance(id) {
            for (used, needs) in step.uses.iter().zip(&instance.needs) {
                let most = needs
                    .iter()
                    .map(|n| n.iter().map(stored).fold(0, u64::saturating_add))
                    .max()
                    .unwrap_or(0);
                inputs = inputs.saturating_add(most);
                if used.role == Role::Inout {
                    hard = hard.saturating_add(most);
                }
            }
        }
        let mut outs = step.uses.iter().filter(|u| u.role == Role::Out);
        let declared = outs.try_fold(0u64, |sum, u| {
            let size = self.start.workflow.dataset(u.data).size?;
            Some(sum.saturating_add(size / count))
        });
        let soft = match (state.written, declared) {
            ((sum, n), _) if n > 0 => sum / n,
            (_, Some(bytes)) => {
                hard = hard.saturating_add(bytes);
                hard
            }
            (_, None) => inputs.max(UNKNOWN_BYTES),
        };
        let soft = soft.saturating_mul(state.reserve_factor).max(state.outgrew);
        let checkpoints = step.restart.map_or(0, |r| r.space);
        let all = |bytes: u64| bytes.saturating_add(checkpoints);
        (all(soft.max(hard)), all(hard))
    }

    /// How long it would take to bring the missing parts to a node, each from its best source and behind the transfers
    /// already under way, and (missing, local) bytes. A part on its way there already counts as local, and is there
    /// when the link has carried its present load.
    pub(crate) fn data_ready<'a>(
        &self,
        node: NodeId,
        parts: impl Iterator<Item = &'a PartRef>,
    ) -> (Nanos, u64, u64) {
        let cluster = &self.start.cluster;
        let outside = self.under_way.get(&TransferKind::ExternalIn);
        let outside = outside.copied().unwrap_or(0);
        let (mut external, mut peer, mut local, mut files) = (0u64, 0u64, 0u64, 0u64);
        let mut ready = 0;
        for name in parts {
            let Some(part) = self.data.part(*name) else {
                continue;
            };
            let coming = || self.transfers.get(&part.incoming_to(node)?);
            if self.usable_on(node, part).is_some() {
                local += part.info.bytes;
            } else if let Some(active) = coming() {
                local += part.info.bytes;
                let link = match active.transfer.kind {
                    TransferKind::ExternalIn => duration(outside, cluster.external.read),
                    _ => duration(self.links.received(node), cluster.peer.read),
                };
                ready = ready.max(link);
            } else if self.comes_by_peer(node, part) {
                peer += part.info.bytes;
            } else {
                external += part.info.bytes;
                files += part.info.files;
            }
        }
        if external > 0 {
            let latency = cluster.external.latency.saturating_mul(files)
                / u64::from(cluster.external.streams.max(1));
            let bytes = external.saturating_add(outside);
            ready = ready.max(duration(bytes, cluster.external.read).saturating_add(latency));
        }
        if peer > 0 {
            let bytes = peer.saturating_add(self.links.received(node));
            ready = ready.max(duration(bytes, cluster.peer.read));
        }
        (ready, external + peer, local)
    }
}
