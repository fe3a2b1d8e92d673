//! Each call by which tarn changes files is failed, or the process killed in it, one at a time: what a command says of
//! itself is true then, nothing that was there is lost, and the next command goes on.

#[path = "inject/calls.rs"]
mod calls;
#[path = "inject/ckpt.rs"]
mod ckpt;
mod common;
#[path = "inject/data.rs"]
mod data;
#[path = "inject/every.rs"]
mod every;
#[path = "../../../bindings/c/tests/common/mod.rs"]
#[allow(dead_code)]
mod linked;
#[path = "inject/pages.rs"]
mod pages;
#[path = "inject/slurm.rs"]
mod slurm;
#[path = "inject/storage.rs"]
mod storage;
#[path = "inject/verbs.rs"]
mod verbs;
