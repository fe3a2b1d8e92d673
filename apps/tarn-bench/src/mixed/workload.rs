//! A trace and workflows on one machine, from a seed: as a workload file (docs/reference/workload-file.md).

use super::Args;
use crate::error::{CliError, CliResult};
use crate::trial::FileReadCache;
use std::fmt::Write;
use std::path::Path;
use tarn_console::simulated::rejected;
use tarn_spec::site::{Loaded, ReadOptions, read_workload};
use tarn_types::codes::Exit;
use tarn_types::site::{Machine, Submit};
use tarn_types::units::Nanos;

/// The path that the workload file would have.
const FILE: &str = "mixed.toml";

/// How long the trace lasts: from its first submission to its last.
///
/// # Errors
/// When it is no trace, or cannot be used.
pub(super) fn span(args: &Args, machine: &Machine, files: &FileReadCache) -> CliResult<Nanos> {
    let loaded = read(&trace(args, args.seed)?, machine, files)?;
    let submitted = loaded.workload.jobs.iter().map(|job| match job.submit {
        Submit::At(time) => time,
        Submit::After(_) => 0,
    });
    Ok(submitted.max().unwrap_or(0))
}

/// The trace with data, and each workflow as often as requested while it lasts (`span`).
///
/// # Errors
/// When a file cannot be used.
pub(super) fn mixed(
    args: &Args,
    machine: &Machine,
    files: &FileReadCache,
    seed: u32,
    span: Nanos,
) -> CliResult<Loaded> {
    let mut text = trace(args, seed)?;
    // The mean time between arrivals. The first comes at half of it, so that not all workflows begin with the trace.
    let every = span / u64::from(args.count);
    for (n, path) in (0u32..).zip(&args.workflow) {
        let arrivals = seed.wrapping_mul(1000).wrapping_add(n);
        let _ = write!(
            text,
            "[[workflow]]\nfile = {}\nname = \"flow-{n}\"\ncount = {}\nevery = \"{every}ns\"\narrives = \"{}ns\"\n\
             seed = {arrivals}\nbytes-scale = {:?}\ntime-scale = {:?}\n",
            quoted(path)?,
            args.count,
            every / 2,
            args.bytes_scale,
            args.time_scale
        );
    }
    read(&text, machine, files)
}

fn trace(args: &Args, seed: u32) -> CliResult<String> {
    let max_jobs = args.max_jobs.map(|n| format!("max-jobs = {n}\n"));
    Ok(format!(
        "[[trace]]\nfile = {}\nprocs-per-node = {}\n{}data = {{ io = {:?}, jobs = {:?}, seed = {seed} }}\n",
        quoted(&args.swf)?,
        args.procs_per_node,
        max_jobs.unwrap_or_default(),
        args.io_share,
        args.io_jobs
    ))
}

/// A path as a string of TOML, which takes every escape that JSON has.
fn quoted(path: &Path) -> CliResult<String> {
    let absolute = std::path::absolute(path).ok();
    let text = absolute.as_deref().and_then(Path::to_str);
    let quoted = text.and_then(|t| serde_json::to_string(t).ok());
    quoted.ok_or_else(|| {
        let message = format!(
            "{} has a name that is no text (UTF-8); rename it or link to it",
            path.display()
        );
        CliError::new(Exit::Usage, message)
    })
}

fn read(text: &str, machine: &Machine, files: &FileReadCache) -> CliResult<Loaded> {
    let bytes = |path: &Path| {
        if path == Path::new(FILE) {
            Ok(text.as_bytes().to_vec())
        } else {
            files.read(path)
        }
    };
    read_workload(Path::new(FILE), machine, &ReadOptions::default(), &bytes)
        .map_err(|r| rejected(r, "workload"))
}
