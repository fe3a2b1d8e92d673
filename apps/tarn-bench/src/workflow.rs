//! `tarn bench workflow`: the papers' synthetic workflow, a producer of files and their consumer, over external
//! directory, disk and node tier, without and with the page cache, for one pair and for many (Weiland 2018, Tables 1
//! to 3; Jackson 2019, Table 1); and the same pairs carried by `tarn run`.

use crate::figure::{BenchFigure, median};
use crate::io::{IoReport, PAGE, PageCacheUse};
use crate::processes;
use crate::scratch::{ScratchFolder, file_system};
use anyhow::{Context, bail, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tarn_console::programs::find;
use tarn_types::units::{Bytes, parse_rate};

/// The papers' shapes: files and bytes of each. With many pairs each pair has a tenth of the files.
const SHAPES: [(u32, u64); 3] = [(10, 1_000_000_000), (100, 100_000_000), (1000, 10_000_000)];
/// Pairs at once: each is a process, and the papers have 36.
const MAX_PAIRS: u32 = 1024;
/// Repetitions; the papers have 5.
const MAX_RUNS: u32 = 100;

/// Steps of the workflow that does nothing.
const MAX_STEPS: u32 = 100_000;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WorkflowBenchPart {
    /// The papers' producers and consumers.
    Papers,
    /// Steps that do nothing: the cost of a step.
    Noop,
}

/// Options of `tarn bench workflow`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Size of the files relative to the papers' 10 x 1 GB, 100 x 100 MB and 1000 x 10 MB.
    #[arg(long, default_value_t = 0.05)]
    scale: f64,
    /// Producers and consumers at once (the papers: 1 and 36); above 1 each has a tenth of the files.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PAIRS)))]
    pairs: u32,
    /// Only the shape of so many files: 10, 100 or 1000.
    #[arg(long, value_name = "N", value_parser = ["10", "100", "1000"])]
    files: Option<String>,
    /// Only this part of it.
    #[arg(long, value_enum)]
    case: Option<WorkflowBenchPart>,
    /// Steps of the no-op workflows.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STEPS)))]
    steps: u32,
    /// Repetitions, all cases in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RUNS)))]
    runs: u32,
    /// The external directory.
    #[arg(long, value_name = "DIR")]
    external: Option<PathBuf>,
    /// Emulate a slow external store: limit the processes that use it to this rate, all together.
    #[arg(long, value_name = "RATE")]
    external_rate: Option<String>,
    /// A directory on a local disk.
    #[arg(long, value_name = "DIR", default_value = ".")]
    disk: PathBuf,
    /// A directory on the node tier.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
}

/// The storage for the files of one case.
#[derive(Debug, Clone)]
struct StorageTarget {
    name: String,
    folder: PathBuf,
    /// Bytes a second of all processes together, 0 for no limit.
    rate: u64,
}

/// One line of the papers' tables.
#[derive(Debug)]
struct PaperCase {
    label: String,
    files: u32,
    size: u64,
    /// `None`: by `tarn run` on its node tier.
    target: Option<(StorageTarget, PageCacheUse)>,
    /// Slowest and fastest pair of each repetition.
    runs: Vec<Timing>,
    method: String,
}

/// Seconds of one repetition.
#[derive(Debug, Clone, Copy, Default)]
struct Timing {
    write: f64,
    read: f64,
    fastest_write: f64,
    fastest_read: f64,
    /// From the first producer's start to the last consumer's end, the starting of processes included.
    wall: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no space, a folder cannot be used, or a process fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut all = Vec::new();
    if args.case != Some(WorkflowBenchPart::Noop) {
        all.extend(papers(args)?);
    }
    if args.case != Some(WorkflowBenchPart::Papers) {
        let media = [args.disk.as_path(), args.memory.as_path()];
        all.extend(crate::noop::run(&media, args.steps, args.runs)?);
    }
    Ok(all)
}

fn papers(args: &Args) -> anyhow::Result<Vec<BenchFigure>> {
    let mut cases = plan(args)?;
    check_space(args, &cases)?;
    let home = ScratchFolder::new(&args.disk)?;
    for turn in 0..args.runs {
        for case in &mut cases {
            let seed = u64::from(turn) + 1;
            let (timing, method) = match &case.target {
                Some((target, cache)) => direct(case, target, *cache, args.pairs, seed)?,
                None => through_tarn(case, home.path(), &args.memory, args.pairs, seed)?,
            };
            crate::print::message!(
                "{}/{}  {}: write {:.3} s, read {:.3} s ({method})",
                turn + 1,
                args.runs,
                case.label,
                timing.write,
                timing.read
            );
            case.runs.push(timing);
            case.method = method;
        }
    }
    Ok(figures(&cases, args.pairs))
}

/// All cases, with the ones of a shape side by side.
fn plan(args: &Args) -> anyhow::Result<Vec<PaperCase>> {
    ensure!(
        args.scale > 0.0 && args.scale <= 100.0,
        "--scale {}: give more than 0 and at most 100",
        args.scale
    );
    let targets = targets(args)?;
    let mut cases = Vec::new();
    let only = args.files.as_ref().and_then(|n| n.parse::<u32>().ok());
    let is_wanted = |(files, _): &(u32, u64)| only.is_none_or(|n| n == *files);
    for (files, bytes) in SHAPES.into_iter().filter(is_wanted) {
        let files = if args.pairs > 1 { files / 10 } else { files };
        let pages = (bytes as f64 * args.scale / PAGE as f64).round().max(1.0) as u64;
        let size = pages * PAGE as u64;
        let mut add = |name: String, target| {
            cases.push(PaperCase {
                label: format!(
                    "{} pair(s) x {files} x {:.3} MB, {name}",
                    args.pairs,
                    size as f64 / 1e6
                ),
                files,
                size,
                target,
                runs: Vec::new(),
                method: String::new(),
            });
        };
        for target in &targets {
            for (cache, word) in [
                (PageCacheUse::Without, "without"),
                (PageCacheUse::With, "with"),
            ] {
                add(
                    format!("{}, {word} cache", target.name),
                    Some((target.clone(), cache)),
                );
            }
        }
        add("tarn run".into(), None);
    }
    Ok(cases)
}

fn targets(args: &Args) -> anyhow::Result<Vec<StorageTarget>> {
    let rate = match &args.external_rate {
        Some(text) => parse_rate(text).with_context(|| format!("--external-rate {text}"))?,
        None => 0,
    };
    let mut targets = Vec::new();
    if args.external.is_some() || rate > 0 {
        let folder = args.external.clone().unwrap_or_else(|| args.disk.clone());
        let emulated = if rate > 0 {
            format!(", emulated at {:.0} MB/s", rate as f64 / 1e6)
        } else {
            String::new()
        };
        let name = format!("external directory ({}{emulated})", file_system(&folder)?);
        targets.push(StorageTarget { name, folder, rate });
    }
    for (what, folder) in [("disk", &args.disk), ("node tier", &args.memory)] {
        targets.push(StorageTarget {
            name: format!("{what} ({})", file_system(folder)?),
            folder: folder.clone(),
            rate: 0,
        });
    }
    Ok(targets)
}

/// Refuses cases that do not fit: the largest one beside a tenth of the free space.
fn check_space(args: &Args, cases: &[PaperCase]) -> anyhow::Result<()> {
    let largest = cases
        .iter()
        .map(|c| u64::from(c.files) * c.size)
        .max()
        .unwrap_or(0);
    let needed = largest.saturating_mul(u64::from(args.pairs));
    let folders = cases
        .iter()
        .filter_map(|c| c.target.as_ref().map(|(t, _)| &t.folder));
    for folder in folders {
        let stat = rustix::fs::statvfs(folder)
            .with_context(|| format!("cannot ask for the free space of {}", folder.display()))?;
        let mut free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if file_system(folder)? == "tmpfs" {
            free = free.min(available_memory());
        }
        ensure!(
            needed <= free / 10 * 9,
            "{} has {} free, {} are needed: give a smaller --scale or fewer --pairs",
            folder.display(),
            Bytes(free),
            Bytes(needed)
        );
    }
    Ok(())
}

/// Bytes of memory that can be had without swapping.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or(0, |k| k.saturating_mul(1024))
}

/// The arguments of a process of `tarn __io`.
fn io_arguments(role: &str, case: &PaperCase, cache: PageCacheUse, seed: u64) -> Vec<String> {
    let cache = if cache == PageCacheUse::With {
        "with"
    } else {
        "without"
    };
    let words = format!(
        "__io {role} --files {} --size {} --seed {seed} --cache {cache}",
        case.files, case.size
    );
    words.split(' ').map(str::to_owned).collect()
}

/// All producers at once, then all consumers at once, on a target.
fn direct(
    case: &PaperCase,
    target: &StorageTarget,
    cache: PageCacheUse,
    pairs: u32,
    seed: u64,
) -> anyhow::Result<(Timing, String)> {
    let scratch = ScratchFolder::new(&target.folder)?;
    let own = std::env::current_exe()?;
    let started = Instant::now();
    let all = |role: &str| -> anyhow::Result<Vec<IoReport>> {
        let commands = (0..pairs).map(|pair| {
            let mut command = Command::new(&own);
            command
                .args(io_arguments(
                    role,
                    case,
                    cache,
                    seed + 1000 * u64::from(pair),
                ))
                .args([
                    "--rate",
                    &target.rate.div_ceil(u64::from(pairs)).to_string(),
                    "--dir",
                ])
                .arg(scratch.path().join(format!("pair-{pair}")))
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            Ok(command)
        });
        let outputs = processes::outputs(commands).with_context(|| format!("{role} has failed"))?;
        let reports = outputs.iter().map(|output| serde_json::from_slice(output));
        let reports: Result<_, _> = reports.collect();
        reports.context("the output of a producer or consumer cannot be read")
    };
    let written = all("write")?;
    let read = all("read")?;
    let method = written
        .first()
        .map(|r| r.method.clone())
        .unwrap_or_default();
    Ok((timing(&written, &read, started), method))
}

/// The same pairs as a workflow of two steps under `tarn run`.
fn through_tarn(
    case: &PaperCase,
    home: &Path,
    tier: &Path,
    pairs: u32,
    seed: u64,
) -> anyhow::Result<(Timing, String)> {
    let scratch = ScratchFolder::new(home)?;
    let folder = scratch.path().canonicalize()?;
    let own = std::env::current_exe()?;
    std::fs::write(
        folder.join("workflow.toml"),
        workflow(case, &own, &folder, pairs, seed)?,
    )?;
    let mut tier_option = OsString::from("bench=");
    tier_option.push(tier.canonicalize()?);
    let started = Instant::now();
    let output = Command::new(find("tarn")?)
        .args(["run", "--nodes", "1", "--tier"])
        .arg(tier_option)
        .arg(folder.join("workflow.toml"))
        .stdin(Stdio::null())
        .output()
        .context("cannot start tarn")?;
    if !output.status.success() {
        bail!(
            "`tarn run` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let all = |role: &str| -> anyhow::Result<Vec<IoReport>> {
        let report = |pair| folder.join(format!("{role}-pair-{pair}"));
        (0..pairs)
            .map(|p| Ok(serde_json::from_slice(&std::fs::read(report(p))?)?))
            .collect()
    };
    Ok((
        timing(&all("write")?, &all("read")?, started),
        "node tier, by tarn".into(),
    ))
}

/// The workflow file: a producer and a consumer for each pair. Reports are files beside it.
fn workflow(
    case: &PaperCase,
    tarn: &Path,
    folder: &Path,
    pairs: u32,
    seed: u64,
) -> anyhow::Result<String> {
    let quoted = |path: &Path| -> anyhow::Result<String> {
        let text = path.to_str().with_context(|| {
            format!("{}: not UTF-8, which a workflow file needs", path.display())
        })?;
        ensure!(
            !text.contains(['\'', '"', '\\', '\n']),
            "{text}: quotes or backslashes in this path are not supported here"
        );
        Ok(format!("'{text}'"))
    };
    let command = |role: &str| -> anyhow::Result<String> {
        let words = io_arguments(role, case, PageCacheUse::With, seed).join(" ");
        let report = quoted(&folder.join(format!("{role}-")))?;
        Ok(format!(
            "{} {words} --dir $TARN_files/$TARN_ITEM --report {report}$TARN_ITEM",
            quoted(tarn)?
        ))
    };
    let names: Vec<String> = (0..pairs).map(|p| format!("\"pair-{p}\"")).collect();
    Ok(format!(
        "name = \"bench\"\n\n[data.files]\nsize = \"{size} B\"\n\n\
         [[step]]\nname = \"produce\"\nforeach = [{names}]\nrun = \"{produce}\"\nout = [\"files\"]\n\n\
         [[step]]\nname = \"consume\"\nforeach = \"files/*\"\nmax = {pairs}\nrun = \"{consume}\"\nin = [\"files/{{item}}\"]\n",
        size = u64::from(case.files) * case.size * u64::from(pairs),
        names = names.join(", "),
        produce = command("write")?,
        consume = command("read")?,
    ))
}

fn timing(written: &[IoReport], read: &[IoReport], started: Instant) -> Timing {
    let slowest = |reports: &[IoReport]| reports.iter().map(|r| r.seconds).fold(0.0, f64::max);
    let fastest = |reports: &[IoReport]| {
        reports
            .iter()
            .map(|r| r.seconds)
            .fold(f64::INFINITY, f64::min)
    };
    Timing {
        write: slowest(written),
        read: slowest(read),
        fastest_write: fastest(written),
        fastest_read: fastest(read),
        wall: started.elapsed().as_secs_f64(),
    }
}

/// Medians over the repetitions, with the extremes that the papers print.
fn figures(cases: &[PaperCase], pairs: u32) -> Vec<BenchFigure> {
    let mut figures = Vec::new();
    for case in cases {
        let values = |f: fn(&Timing) -> f64| case.runs.iter().map(f).collect::<Vec<_>>();
        let mut add = |what: &str, value: f64, against| {
            figures.push(BenchFigure {
                name: format!("{} ({}): {what}", case.label, case.method),
                value,
                unit: "s",
                against,
            });
        };
        for (what, seconds) in [("write", values(|t| t.write)), ("read", values(|t| t.read))] {
            add(
                &format!("{what}, least"),
                seconds.iter().copied().fold(f64::INFINITY, f64::min),
                None,
            );
            add(&format!("{what}, median"), median(&seconds), None);
            add(
                &format!("{what}, most"),
                seconds.iter().copied().fold(0.0, f64::max),
                None,
            );
        }
        if pairs > 1 {
            add(
                "write + read of the fastest pairs, median",
                median(&values(|t| t.fastest_write + t.fastest_read)),
                None,
            );
        }
        let wall = median(&values(|t| t.wall));
        if case.target.is_some() {
            add("whole workflow, median", wall, None);
            continue;
        }
        // tarn stands against each place that people would hand the files over in, processes included.
        let same_shape = cases
            .iter()
            .filter(|c| c.size == case.size && c.target.is_some());
        for other in same_shape {
            let seconds: Vec<_> = other.runs.iter().map(|t| t.wall).collect();
            add(
                "whole workflow, median",
                wall,
                Some((other.label.clone(), median(&seconds))),
            );
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(pairs: u32, scale: f64, rate: Option<&str>) -> Args {
        Args {
            scale,
            pairs,
            files: None,
            case: None,
            steps: 1,
            runs: 1,
            external: None,
            external_rate: rate.map(str::to_owned),
            disk: std::env::temp_dir(),
            memory: "/dev/shm".into(),
        }
    }

    #[test]
    fn the_papers_shapes() {
        let cases = plan(&args(1, 1.0, None)).unwrap();
        assert_eq!(cases.len(), 3 * (2 * 2 + 1));
        let tarn: Vec<_> = cases
            .iter()
            .filter(|c| c.target.is_none())
            .map(|c| (c.files, (c.size + 500_000) / 1_000_000))
            .collect();
        assert_eq!(
            tarn,
            [(10, 1000), (100, 100), (1000, 10)],
            "sizes are rounded to whole pages"
        );
        assert!(cases.iter().all(|c| c.size % PAGE as u64 == 0));

        let many = plan(&args(36, 1e-9, Some("50 MB/s"))).unwrap();
        assert_eq!(many.len(), 3 * (3 * 2 + 1));
        assert!(
            many.iter().all(|c| c.size == PAGE as u64),
            "at least a page"
        );
        assert!(
            many[0].files == 1 && many[0].label.contains("emulated at"),
            "{}",
            many[0].label
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(plan(&args(1, 0.0, None)).is_err() && plan(&args(1, f64::NAN, None)).is_err());
        assert!(plan(&args(1, 1.0, Some("50"))).is_err());
        let missing = Args {
            disk: "/nonexistent".into(),
            ..args(1, 1.0, None)
        };
        assert!(plan(&missing).is_err());
        let huge = args(1024, 100.0, None);
        let text = check_space(&huge, &plan(&huge).unwrap())
            .unwrap_err()
            .to_string();
        assert!(text.contains("--scale"), "{text}");
    }

    #[test]
    fn the_workflow_is_a_workflow() {
        let cases = plan(&args(2, 0.001, None)).unwrap();
        let text = workflow(
            &cases[0],
            Path::new("/opt/a b/tarn"),
            Path::new("/tmp/x"),
            2,
            1,
        )
        .unwrap();
        let read = tarn_spec::parse("bench.toml", &text, Path::new("/tmp"));
        assert!(read.is_ok(), "{text}");
        assert!(workflow(&cases[0], Path::new("/opt/it's"), Path::new("/tmp"), 2, 1).is_err());
    }

    #[test]
    fn figures_stand_beside_their_baselines() {
        let mut cases = plan(&args(2, 0.001, None)).unwrap();
        for (n, case) in cases.iter_mut().enumerate() {
            let wall = (n + 1) as f64;
            case.runs = vec![
                Timing {
                    wall,
                    write: 3.0,
                    read: 2.0,
                    fastest_write: 1.0,
                    fastest_read: 1.0
                };
                3
            ];
        }
        let all = figures(&cases, 2);
        let compared: Vec<_> = all.iter().filter(|f| f.against.is_some()).collect();
        assert_eq!(compared.len(), 3 * 4);
        assert_eq!((compared[0].value, compared[0].ratio()), (5.0, Some(0.2)));
        assert!(
            all.iter()
                .any(|f| f.name.ends_with("fastest pairs, median") && f.value == 2.0)
        );
    }
}
