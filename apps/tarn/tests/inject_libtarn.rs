//! Each call by which libtarn, or the tarnd that a program asks, changes files is failed, or the process killed in it, one at a
//! time: all that a call says of itself is true then, nothing that was there is lost, and the same call succeeds when it is made
//! again.

#[path = "inject/calls.rs"]
#[allow(dead_code)]
mod calls;
mod common;
use common::program;
#[path = "inject_libtarn/exported.rs"]
mod exported;
#[path = "../../../bindings/c/tests/common/mod.rs"]
mod linked;
mod nodes;
#[path = "inject_libtarn/programs.rs"]
mod programs;
#[path = "inject_libtarn/steps.rs"]
mod steps;
#[path = "inject_libtarn/tasks.rs"]
mod tasks;

use linked::{compiler, output_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program of libtarn's tests.
fn compiled(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let part = program.with_extension(std::process::id().to_string());
    let flags = ["-std=c11", "-D_GNU_SOURCE"];
    let source = format!("tests/{name}.c");
    output_of(&mut compiler("cc", &flags, &[&source], &part));
    std::fs::rename(part, &program).unwrap();
    program
}

fn ran(command: &mut Command) -> String {
    let Output { stdout, stderr, .. } = command.output().unwrap();
    String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
}
