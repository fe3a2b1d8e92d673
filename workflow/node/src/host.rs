//! The properties of this machine: its tiers, how fast they are, and its view of other machines.

pub mod machine;
pub mod sight;
pub(crate) mod tiers;
