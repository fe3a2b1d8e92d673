//! Identifiers: small indices into the tables of one run.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The position in its table.
            pub fn at(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

index!(
    /// A dataset: its position among the workflow's datasets.
    DataId,
    "d"
);
index!(
    /// A step: its position among the workflow's steps.
    StepId,
    "s"
);
index!(
    /// A partition: its position among the workflow's partitions.
    PartitionId,
    "p"
);
index!(
    /// A node: its position among the cluster's nodes.
    NodeId,
    "n"
);
index!(
    /// A tier of a node: its position among the node's tiers, fast to slow.
    TierId,
    "t"
);

/// One execution unit: a step, or one element of a `foreach` step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InstanceId {
    /// The step.
    pub step: StepId,
    /// 0 for a plain step; the element's position for a `foreach` step.
    pub index: u32,
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.step, self.index)
    }
}

/// A transfer, numbered within its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{}", self.0)
    }
}

/// A tier of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TierRef {
    /// The node.
    pub node: NodeId,
    /// The tier of that node.
    pub tier: TierId,
}

/// The subject of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// An instance.
    Instance(InstanceId),
    /// A step, before its instances are known.
    Step(StepId),
    /// A dataset.
    Data(DataId),
    /// A tier.
    Tier(TierRef),
    /// The run.
    Run,
}
