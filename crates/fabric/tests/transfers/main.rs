//! Trees copied between a data server and movers over real sockets.

mod bad_days;
mod calls;
mod common;
mod pipeline;
mod strangers;
mod trees;
