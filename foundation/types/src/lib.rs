//! L0: the types of every other crate of tarn. Pure values and functions, no I/O, no clock.
//!
//! Reading order: [`workflow`] (the request), [`cluster`] (the resources), [`part`] (how data is
//! named and divided), [`event`] and [`action`] (inputs and outputs of the engine), [`reason`] (why), [`policy`] (by
//! which rule); [`site`] (the same for a whole machine with many users); [`ledger`],
//! [`placement`] and [`retry`] (the accounts and rules of a simulated cluster, a run and a site alike).

pub mod account;
pub mod action;
pub mod block;
pub mod bounds;
pub mod checkpoint;
pub mod cluster;
pub mod codes;
pub mod compute;
pub mod crc;
pub mod energy;
pub mod event;
pub mod grant;
pub mod hash;
pub mod history;
pub mod id;
pub mod key;
pub mod layout;
pub mod ledger;
pub mod line;
pub mod manifest;
pub mod merge;
pub mod named;
pub mod nodes;
pub mod object;
pub mod part;
pub mod pattern;
pub mod placement;
pub mod policy;
pub mod random;
pub mod reason;
pub mod retry;
pub mod shell;
pub mod site;
pub mod space;
pub mod strangers;
pub mod stream;
pub mod text;
pub mod units;
pub mod workflow;
