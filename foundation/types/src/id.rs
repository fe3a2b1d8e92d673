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
    /// A dataset: its position in [`crate::workflow::Workflow::data`].
    DataId,
    "d"
);
index!(
    /// A step: its position in [`crate::workflow::Workflow::steps`].
    StepId,
    "s"
);
index!(
    /// A partition: its position in [`crate::workflow::Workflow::partitions`].
    PartitionId,
    "p"
);
index!(
    /// A node: its position in [`crate::cluster::Cluster::nodes`].
    NodeId,
    "n"
);
index!(
    /// A tier of a node: its position in [`crate::cluster::Node::tiers`], fast to slow.
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
