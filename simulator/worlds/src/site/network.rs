//! The links, stores and tiers of a machine, whose bandwidth streams share max-min fairly, for worlds that carry out other orders than
//! a planner's.

use super::fluid::{Fluid, StreamDemand, UNLIMITED, rate_of};
use super::plumbing::{self, NodePipe, STORE_READ, STORE_WRITE};
use tarn_types::id::NodeId;
use tarn_types::site::Machine;
use tarn_types::units::Time;

/// A stream in motion.
pub type MachineStream = u32;

/// The way of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamWay {
    /// From the external store to the memory of a node, or to its tier.
    In {
        /// The node.
        to: NodeId,
        /// Whether it ends on the node's tier.
        on_tier: bool,
    },
    /// From a node to the external store.
    Out {
        /// The node.
        from: NodeId,
        /// Whether it begins on the node's tier.
        on_tier: bool,
    },
    /// From the tier of a node to that of another one.
    Between {
        /// The node that has it.
        from: NodeId,
        /// The node that gets it.
        to: NodeId,
    },
    /// A program reads the tier of its node.
    TierRead(NodeId),
    /// A program writes the tier of its node.
    TierWrite(NodeId),
}

/// The bandwidths of a machine, and the streams that share them.
#[derive(Debug)]
pub struct MachineNetwork {
    fluid: Fluid,
    /// Limits of one stream from and to the external store.
    one_in: u64,
    one_out: u64,
}

impl MachineNetwork {
    /// The network of a machine, at rest.
    pub fn new(machine: &Machine) -> Self {
        let saturates = u64::from(machine.store.saturates.max(1));
        let of_one = |rate: u64| match rate_of(rate) {
            UNLIMITED => UNLIMITED,
            rate => (rate / saturates).max(1),
        };
        Self {
            fluid: Fluid::new(plumbing::capacities(machine).into_iter()),
            one_in: of_one(machine.store.rates.read),
            one_out: of_one(machine.store.rates.write),
        }
    }

    /// A stream of so many bytes begins; without bytes it ends at once.
    pub fn start(&mut self, now: Time, bytes: u64, way: StreamWay) -> MachineStream {
        let at = |node: NodeId, which: NodePipe| plumbing::pipe(node, which);
        let (cap, mut over) = match way {
            StreamWay::In { to, .. } => (self.one_in, vec![STORE_READ, at(to, NodePipe::ClientIn)]),
            StreamWay::Out { from, .. } => (
                self.one_out,
                vec![STORE_WRITE, at(from, NodePipe::ClientOut)],
            ),
            StreamWay::Between { from, to } => {
                let links = vec![at(from, NodePipe::LinkOut), at(to, NodePipe::LinkIn)];
                (UNLIMITED, links)
            }
            StreamWay::TierRead(_) | StreamWay::TierWrite(_) => (UNLIMITED, Vec::new()),
        };
        match way {
            StreamWay::In { to, on_tier: true } => over.push(at(to, NodePipe::TierWrite)),
            StreamWay::Out {
                from,
                on_tier: true,
            } => over.push(at(from, NodePipe::TierRead)),
            StreamWay::Between { from, to } => {
                over.extend([at(from, NodePipe::TierRead), at(to, NodePipe::TierWrite)]);
            }
            StreamWay::TierRead(node) => over.push(at(node, NodePipe::TierRead)),
            StreamWay::TierWrite(node) => over.push(at(node, NodePipe::TierWrite)),
            StreamWay::In { .. } | StreamWay::Out { .. } => {}
        }
        let demand = StreamDemand {
            bytes,
            cap,
            class: 0,
            over,
        };
        self.fluid.start(now, &demand)
    }

    /// The stream that ends next, and when. The caller then [stops](Self::stop) it.
    pub fn next(&mut self, now: Time) -> Option<(Time, MachineStream)> {
        let (time, stream) = self.fluid.next(now)?;
        (time < Time::MAX).then_some((time, stream))
    }

    /// A stream ends, complete or not.
    pub fn stop(&mut self, now: Time, stream: MachineStream) {
        self.fluid.stop(now, stream);
    }
}
