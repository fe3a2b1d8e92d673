//! The cost of a step that does nothing: `tarn run` of many `true`s beside a plain loop of `sh -c true`, with all of
//! tarn's state and its tier on one medium, and beside the price of a sync there.

use crate::figure::{BenchFigure, median};
use crate::scratch::{ScratchFolder, file_system};
use anyhow::{Context, ensure};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use tarn_console::programs::find;

/// Appends whose sync is timed at each turn; a record of a step that does nothing is about as long as these.
const SYNCS: u32 = 200;
const SYNC_BYTES: usize = 1024;

/// How the steps hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoopDependencies {
    /// No data: as many at once as there are cores.
    Independent,
    /// Each changes one small dataset: a new version, a copy and a manifest a step, one after the other.
    Chain,
}

/// Seconds of the turns so far.
struct NoopCase {
    label: String,
    shape: NoopDependencies,
    tarn: Vec<f64>,
    plain: Vec<f64>,
}

/// All shapes on all media, in turns.
///
/// # Errors
/// When a folder cannot be used or a process fails.
pub(super) fn run(media: &[&Path], steps: u32, runs: u32) -> anyhow::Result<Vec<BenchFigure>> {
    let mut figures = Vec::new();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for folder in media {
        let medium = file_system(folder)?;
        let case = |shape: NoopDependencies, what: &str| NoopCase {
            label: format!("{steps} no-op steps, {what}, log and tier on {medium}"),
            shape,
            tarn: Vec::new(),
            plain: Vec::new(),
        };
        let mut cases = [
            case(NoopDependencies::Independent, "independent"),
            case(NoopDependencies::Chain, "a chain with a small dataset"),
        ];
        let mut syncs = Vec::new();
        for turn in 0..runs {
            for case in &mut cases {
                syncs.push(sync_time(folder)?);
                let width = if case.shape == NoopDependencies::Chain {
                    1
                } else {
                    cores
                };
                case.plain.push(plain(steps, width)?);
                case.tarn.push(by_tarn(folder, case.shape, steps)?);
                eprintln!(
                    "{}/{runs}  {}: {:.2} s, plain loop {:.2} s",
                    turn + 1,
                    case.label,
                    case.tarn.last().unwrap_or(&0.0),
                    case.plain.last().unwrap_or(&0.0)
                );
            }
        }
        figures.extend(cases.iter().flat_map(|c| of_case(c, steps)));
        figures.push(BenchFigure {
            name: format!("one append of {SYNC_BYTES} B with fdatasync on {medium}, median"),
            value: median(&syncs) * 1e3,
            unit: "ms",
            against: None,
        });
    }
    Ok(figures)
}

fn of_case(case: &NoopCase, steps: u32) -> [BenchFigure; 2] {
    let a_step = |seconds: f64| seconds * 1e3 / f64::from(steps);
    let pairs = case.tarn.iter().zip(&case.plain);
    let own: Vec<f64> = pairs.map(|(tarn, plain)| a_step(tarn - plain)).collect();
    let against = (
        "plain loop of sh -c true".to_owned(),
        a_step(median(&case.plain)),
    );
    let figure = |what: &str, value, against| BenchFigure {
        name: format!("{}: {what}", case.label),
        value,
        unit: "ms",
        against,
    };
    [
        figure(
            "wall time a step",
            a_step(median(&case.tarn)),
            Some(against),
        ),
        figure("tarn's own time a step", median(&own), None),
    ]
}

/// The workflow file of `steps` steps.
fn workflow(shape: NoopDependencies, steps: u32) -> String {
    let mut text = String::from("name = \"noop\"\n");
    if shape == NoopDependencies::Chain {
        text.push_str("\n[data.token]\n");
    }
    for step in 0..steps {
        let rest = match (shape, step) {
            (NoopDependencies::Independent, _) => "run = \"true\"\n",
            (NoopDependencies::Chain, 0) => {
                "run = \"echo 0 > $TARN_token/count\"\nout = [\"token\"]\n"
            }
            (NoopDependencies::Chain, _) => "run = \"true\"\ninout = [\"token\"]\n",
        };
        text.push_str(&format!("\n[[step]]\nname = \"s{step}\"\n{rest}"));
    }
    text
}

/// Seconds of `tarn run`, from its start to its end, everything it writes in `folder`.
fn by_tarn(folder: &Path, shape: NoopDependencies, steps: u32) -> anyhow::Result<f64> {
    let scratch = ScratchFolder::new(folder)?;
    let home = scratch.path().canonicalize()?;
    let file = home.join("workflow.toml");
    std::fs::write(&file, workflow(shape, steps))?;
    let started = Instant::now();
    let output = Command::new(find("tarn")?)
        .arg("run")
        .arg(&file)
        .arg("--state")
        .arg(home.join("state"))
        .arg("--tier")
        .arg(format!("bench={}:256MiB", home.join("tier").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .context("cannot start tarn")?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(
        output.status.success(),
        "`tarn run` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(seconds)
}

/// Seconds of `steps` times `sh -c true`, `width` at a time.
fn plain(steps: u32, width: usize) -> anyhow::Result<f64> {
    let left = std::sync::atomic::AtomicU32::new(steps);
    let one = || -> anyhow::Result<()> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "true"]).stdin(Stdio::null());
        let take = |n: u32| n.checked_sub(1);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        while left.fetch_update(relaxed, relaxed, take).is_ok() {
            ensure!(command.status()?.success(), "sh -c true failed");
        }
        Ok(())
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        let loops: Vec<_> = (0..width).map(|_| scope.spawn(one)).collect();
        let mut ended = loops.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.try_for_each(|end| {
            end.unwrap_or_else(|_| Err(anyhow::anyhow!("a plain loop panicked")))
        })
    })?;
    Ok(started.elapsed().as_secs_f64())
}

/// The median time of a sync after an append, in seconds: the least cost of a durable log.
fn sync_time(folder: &Path) -> anyhow::Result<f64> {
    let scratch = ScratchFolder::new(folder)?;
    let mut file = File::create(scratch.path().join("log"))?;
    let mut times = Vec::with_capacity(SYNCS as usize);
    for _ in 0..SYNCS {
        file.write_all(&[b'x'; SYNC_BYTES])?;
        let started = Instant::now();
        file.sync_data()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_are_workflows() {
        for (shape, versions) in [
            (NoopDependencies::Independent, None),
            (NoopDependencies::Chain, Some(5)),
        ] {
            let text = workflow(shape, 5);
            let read = tarn_spec::parse("bench.toml", &text, Path::new("/tmp"));
            let parsed = read.unwrap_or_else(|e| panic!("{:?}", e.problems()));
            assert_eq!(parsed.workflow.steps.len(), 5);
            let last = parsed.workflow.data.first();
            let last = last.map(|_| parsed.workflow.last_version(tarn_types::id::DataId(0)));
            assert_eq!(last, versions, "{text}");
        }
    }

    #[test]
    fn own_time_is_what_the_plain_loop_does_not_take() {
        let case = NoopCase {
            label: "x".into(),
            shape: NoopDependencies::Chain,
            tarn: vec![3.0, 9.0, 4.0],
            plain: vec![1.0, 1.0, 1.0],
        };
        let [wall, own] = of_case(&case, 1000);
        assert_eq!((wall.value, own.value), (4.0, 3.0));
        assert_eq!(wall.ratio(), Some(0.25));
    }

    #[test]
    fn the_plain_loop_and_the_sync_take_time() {
        let folder = tempfile::tempdir().unwrap();
        assert!(plain(3, 2).unwrap() > 0.0 && sync_time(folder.path()).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
