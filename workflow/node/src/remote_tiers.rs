//! Tiers of other nodes: `lent` (what this node exports), `borrowed` (what it attaches), `sweep` (what dead runs left of both and of all
//! else on tiers).

pub mod borrowed;
pub mod lent;
pub(crate) mod sweep;
