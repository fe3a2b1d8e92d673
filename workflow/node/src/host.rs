//! What this machine offers: its tiers, how fast they are, and what it sees of other machines.

pub mod machine;
pub mod sight;
pub(crate) mod tiers;
