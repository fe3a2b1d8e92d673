//! L1: the few unsafe or Linux-specific system calls, made safe

#![allow(unsafe_code)]

pub mod beneath;
pub mod fault;
pub mod fdpass;
pub mod folder;
pub mod handed;
pub mod hwloc;
pub mod links;
pub mod lock;
pub mod memory;
pub mod namespace;
pub mod network;
pub mod private;
pub mod process;
pub mod signals;
pub mod users;
pub mod writeback;
