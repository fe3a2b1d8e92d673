//! Each call by which tarn changes files is failed, or the process killed in it, one at a time: all that a command says of
//! itself is true then, nothing that was there is lost, and the next command succeeds.

#[path = "inject/calls.rs"]
mod calls;
#[path = "inject/cancel.rs"]
mod cancel;
#[path = "inject/ckpt.rs"]
mod ckpt;
mod common;
#[path = "inject/controller.rs"]
mod controller;
#[path = "inject/data.rs"]
mod data;
#[path = "inject/every.rs"]
mod every;
#[path = "../../../bindings/c/tests/common/mod.rs"]
#[allow(dead_code)]
mod linked;
#[path = "inject/modes.rs"]
mod modes;
mod nbd;
#[path = "inject/pages.rs"]
mod pages;
use common::program;
#[path = "inject/plugins.rs"]
mod plugins;
#[path = "inject/programs.rs"]
mod programs;
#[path = "inject/serve.rs"]
mod serve;
#[path = "inject/slurm.rs"]
mod slurm;
#[path = "inject/storage.rs"]
mod storage;
#[path = "inject/submit.rs"]
mod submit;
#[path = "inject/table.rs"]
mod table;
#[path = "inject/verbs.rs"]
mod verbs;
