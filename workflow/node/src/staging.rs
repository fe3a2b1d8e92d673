//! Data on its way between nodes and the outside.
//!
//! Reading order: `pool` (threads), `transfer` (one transfer), `sources`, `dests`, `inventory` (what is left after a crash).

pub(crate) mod dests;
pub(crate) mod inventory;
pub(crate) mod pool;
pub(crate) mod sources;
pub(crate) mod transfer;
