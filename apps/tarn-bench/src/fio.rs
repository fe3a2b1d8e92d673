//! Measurements by fio, for benchmarks that compare with it or measure by it.

use anyhow::Context;
use serde_json::Value;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Whether fio is installed.
pub(super) fn is_here() -> bool {
    let mut version = Command::new("fio");
    version.arg("--version").stdout(Stdio::null());
    !matches!(version.status(), Err(e) if e.kind() == ErrorKind::NotFound)
}

/// Requests a second of a job with these options.
///
/// # Errors
/// When there is no fio, or the job fails.
pub(super) fn rate(reads: bool, options: &[String]) -> anyhow::Result<f64> {
    let out = Command::new("fio")
        .args(["--name=bench", "--output-format=json", "--thread=1"])
        .args(options)
        // Otherwise the libpmem engine refuses files that are no persistent memory.
        .env("PMEM_IS_PMEM_FORCE", "1")
        .stdin(Stdio::null())
        .output()
        .context("cannot start fio (Debian: apt-get install fio)")?;
    let stdout = String::from_utf8_lossy(&out.stdout);
    // Its engines may print something before.
    let (before, text) = match stdout.find("\n{") {
        Some(at) => stdout.split_at(at),
        None => ("", &*stdout),
    };
    let job = || -> Option<Value> {
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let parsed = values.flatten().next()?;
        parsed["jobs"].get(0).cloned()
    };
    let job = job().unwrap_or_default();
    let rate = job[if reads { "read" } else { "write" }]["iops"].as_f64();
    let rate = rate.filter(|rate| *rate > 0.0 && out.status.success() && job["error"] == 0);
    rate.with_context(|| {
        let error = String::from_utf8_lossy(&out.stderr);
        format!("fio {}: {before} {}", options.join(" "), error.trim())
    })
}
