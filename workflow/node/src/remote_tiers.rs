//! Tiers of other nodes: `exported` (what this node exports), `attached` (what it attaches), `sweep` (what dead runs left of both and of all
//! else on tiers).

pub mod attached;
pub mod exported;
pub(crate) mod sweep;
