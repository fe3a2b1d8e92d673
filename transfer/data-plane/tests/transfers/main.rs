//! Trees copied between a data server and movers over real sockets.

mod bad_days;
mod calls;
mod common;
mod crowd;
mod encrypted;
mod far;
mod lanes;
mod pipeline;
mod probe;
mod records;
mod rma;
mod sealed;
mod strangers;
mod trees;
