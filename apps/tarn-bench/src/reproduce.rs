//! `tarn reproduce`: the papers' experiments, programs in `research/experiments`, one after the other, and a page of their results
//! (research/evidence/README.md).

mod child;

use crate::error::{CliError, CliResult, ExitWith};
use crate::figure;
use crate::print::{self, message, out};
use anyhow::Context;
use child::{Child, ChildOutcome, Signals};
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_console::programs::find;
use tarn_mover::Trees;
use tarn_ports::Mover;
use tarn_report::evidence::{self, Experiment, Results};
use tarn_types::codes::Exit;

/// Experiments in a folder.
const MAX_EXPERIMENTS: usize = 200;
/// Minutes that any may take.
const MAX_MINUTES: f64 = 300.0;
/// How many times the minutes that it states an experiment gets.
const TIMEOUT: f64 = 5.0;
/// The longest wait for an experiment's description of itself.
const ABOUT: Duration = Duration::from_secs(30);
/// Bytes of a file to be drawn again.
const MAX_FILE: u64 = 64 << 20;
/// Folders of experiments, relative to a program's folder in a source tree: `target/release`, or a folder below it.
const FOLDERS: [&str; 2] = [
    "../../research/experiments",
    "../../../research/experiments",
];

/// The page, unless another is named.
const PAGE: &str = "results.html";

/// Options of `tarn reproduce`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The experiments [default: all but those that run on request only]
    names: Vec<String>,
    /// Options of the one experiment that is named, behind `--`: its page lists them
    #[arg(last = true, value_name = "OPTIONS", requires = "names")]
    options: Vec<OsString>,
    /// Small sizes, few repetitions: a quarter of an hour in all
    #[arg(long)]
    quick: bool,
    /// List the experiments, what each needs, and how long each and all of them take
    #[arg(long, conflicts_with_all = ["names", "quick", "render"])]
    list: bool,
    /// The page [default: results.html; none with --markdown]; a page that you name leaves the terminal what does not hold
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The file for the results that the page is made from [default: beside the page, with the ending .json]
    #[arg(long, value_name = "FILE", conflicts_with = "render")]
    results: Option<PathBuf>,
    /// Measure nothing: make the page from kept results
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "quick"])]
    render: Option<PathBuf>,
    /// With --render: print the papers' claims and the results as a table in Markdown, that of research/results.md
    #[arg(long, requires = "render", conflicts_with = "json")]
    markdown: bool,
    /// The folder of the experiments [default: research/experiments of the source tree that this tarn was built in]
    #[arg(long, value_name = "DIR", env = "TARN_EXPERIMENTS")]
    experiments: Option<PathBuf>,
    /// A folder for the experiments' files, on a disk and not in /tmp, which each node of a test cluster has for itself
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
}

/// An experiment's description of itself.
#[derive(Debug, Deserialize)]
struct ExperimentInfo {
    title: String,
    source: String,
    needs: Vec<String>,
    minutes: Minutes,
    /// It runs only when it is named.
    #[serde(default)]
    on_request: bool,
}

#[derive(Debug, Deserialize)]
struct Minutes {
    quick: f64,
    full: f64,
}

impl ExperimentInfo {
    /// The empty results of it.
    fn results(&self, name: &str) -> Experiment {
        Experiment {
            schema: evidence::SCHEMA,
            experiment: name.to_owned(),
            title: self.title.clone(),
            source: self.source.clone(),
            ..Experiment::default()
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When there is no such experiment, or the page cannot be written. An experiment that cannot run is none.
pub(crate) fn run(json: bool, args: &Args) -> CliResult {
    if let Some(file) = &args.render {
        return render(json, file, args);
    }
    let signals = Signals::watch()?;
    let folder = folder(args)?;
    let names = names(&folder)?;
    if args.list {
        return list(json, &folder, &names, &signals);
    }
    if args.names.len() > 1 && !args.options.is_empty() {
        let message = "options behind `--` are those of one experiment: name one";
        return Err(CliError::new(Exit::Usage, message));
    }
    let chosen = if args.names.is_empty() {
        // One that does not describe itself is reported as not run.
        let is_usual = |name: &&String| !about(&folder, name, &signals).is_ok_and(|a| a.on_request);
        names.iter().filter(is_usual).cloned().collect()
    } else {
        args.names.clone()
    };
    if let Some(unknown) = chosen.iter().find(|n| !names.contains(n)) {
        let message = format!(
            "there is no experiment `{unknown}`: there are {}",
            names.join(", ")
        );
        return Err(CliError::new(Exit::NotFound, message));
    }
    // A page that cannot be written is known before an hour has passed.
    let page = args.report.as_deref().unwrap_or(Path::new(PAGE));
    let kept = kept(page, args.results.as_deref())?;
    let mut results = Results {
        schema: evidence::SCHEMA,
        machine: figure::machine(),
        tarn: env!("CARGO_PKG_VERSION").to_owned(),
        date: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        quick: args.quick,
        experiments: Vec::new(),
    };
    write(&results, page, &kept)?;
    for (number, name) in chosen.iter().enumerate() {
        message!("{}/{} {name}", number + 1, chosen.len());
        let experiment = run_experiment(&folder, name, args, &signals)?;
        if let Some(why) = &experiment.not_run {
            message!("{name}: not run: {why}");
        }
        results.experiments.push(experiment);
        // The results so far outlive a later failure. A write that fails now may succeed afterwards.
        if let Err(e) = write(&results, page, &kept) {
            message!("warning: {e}");
        }
        if signals.exit().is_some() {
            break;
        }
    }
    print_results(json, args, &results)?;
    write(&results, page, &kept)?;
    message!("{}: all of it, with figures", page.display());
    match signals.exit() {
        Some(exit) => Ok(exit),
        None if results.experiments.iter().any(|e| e.not_run.is_some()) => Ok(Exit::WorkflowFailed),
        None => Ok(Exit::Success),
    }
}

/// All results; with `--report`, only those to be known at once.
fn print_results(json: bool, args: &Args, results: &Results) -> CliResult<()> {
    match (json, &args.report) {
        (true, _) => print::json(results),
        (false, Some(_)) => print::text(&evidence::brief(results)),
        (false, None) => print::text(&evidence::text(results)),
    }
}

/// The page, with a link to the file of the results.
fn drawn(results: &Results, page: &Path, kept: &Path) -> String {
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let page = whole(page);
    let link = tarn_report::link(page.parent().unwrap_or(&page), &whole(kept));
    evidence::page(results, Some(&link))
}

fn render(json: bool, file: &Path, args: &Args) -> CliResult {
    let size = std::fs::metadata(file)
        .with_context(|| format!("cannot read {}", file.display()))
        .exit(Exit::NotFound)?
        .len();
    if size > MAX_FILE {
        let message = format!(
            "{} has {size} bytes: at most {MAX_FILE} are read",
            file.display()
        );
        return Err(CliError::new(Exit::InvalidWorkflow, message));
    }
    let text = std::fs::read(file)
        .with_context(|| format!("cannot read {}", file.display()))
        .exit(Exit::NotFound)?;
    let results = Results::parse(&text)
        .with_context(|| format!("cannot draw {}", file.display()))
        .exit(Exit::InvalidWorkflow)?;
    let page = if args.markdown {
        args.report.as_deref()
    } else {
        Some(args.report.as_deref().unwrap_or(Path::new(PAGE)))
    };
    if let Some(page) = page {
        write_file(page, drawn(&results, page, file).as_bytes(), "--report")?;
    }
    if args.markdown {
        print::text(&evidence::markdown(&results))?
    } else {
        print_results(json, args, &results)?
    }
    Ok(Exit::Success)
}

/// The folder of the experiments.
fn folder(args: &Args) -> CliResult<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let candidates: Vec<PathBuf> = match &args.experiments {
        Some(given) => vec![given.clone()],
        None => FOLDERS.iter().map(|f| beside.join(f)).collect(),
    };
    let found = candidates.iter().find(|c| c.is_dir());
    let found = found.and_then(|f| f.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = candidates.iter().map(|c| c.display().to_string()).collect();
        let message = format!(
            "there are no experiments at {}: name their folder with --experiments; tarn's source tree has them in research/experiments",
            looked.join(" or at ")
        );
        CliError::new(Exit::NotFound, message)
    })
}

/// Names of the experiments in a folder: its programs that others are not parts of.
fn names(folder: &Path) -> CliResult<Vec<String>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))
        .exit(Exit::NotFound)?;
    let mut names = Vec::new();
    for entry in entries.take(MAX_EXPERIMENTS) {
        let entry = entry.context("cannot read the folder of the experiments")?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".py")) else {
            continue;
        };
        // A file that is no program is a part of the experiments.
        if is_program(&entry.path()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Why an experiment has no results, as the page shows it.
#[derive(Debug)]
struct NoResultReason(String);

impl NoResultReason {
    fn interrupted() -> Self {
        Self("interrupted".into())
    }
}

impl std::fmt::Display for NoResultReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn about(folder: &Path, name: &str, signals: &Signals) -> Result<ExperimentInfo, NoResultReason> {
    let program = folder.join(format!("{name}.py"));
    let child =
        Child::start(&program, &["about".into()]).map_err(|e| NoResultReason(format!("{e:#}")))?;
    match child.wait(ABOUT, signals) {
        ChildOutcome::Succeeded(text) => serde_json::from_slice(&text).map_err(|e| {
            NoResultReason(format!(
                "the description of {} cannot be read: {e}",
                program.display()
            ))
        }),
        ChildOutcome::Failed(why) => Err(NoResultReason(why)),
        ChildOutcome::Interrupted => Err(NoResultReason::interrupted()),
    }
}

fn list(json: bool, folder: &Path, names: &[String], signals: &Signals) -> CliResult {
    let mut all = Minutes {
        quick: 0.0,
        full: 0.0,
    };
    for name in names {
        match about(folder, name, signals) {
            Ok(about) if json => print::json(&serde_json::json!({
                "name": name, "title": about.title, "source": about.source, "needs": about.needs,
                "minutes": {"quick": about.minutes.quick, "full": about.minutes.full},
                "on_request": about.on_request,
            }))?,
            Ok(about) => {
                let Minutes { quick, full } = about.minutes;
                let mut when = "";
                if about.on_request {
                    when = "; runs only when it is named";
                } else {
                    all.quick += quick;
                    all.full += full;
                }
                out!("{name}: {} ({})", about.title, about.source)?;
                out!(
                    "    {quick} min with --quick, {full} min else{when}; needs {}",
                    about.needs.join("; ")
                )?;
            }
            Err(why) => message!("{name}: {why}"),
        }
    }
    if !json {
        let Minutes { quick, full } = all;
        let (most_quick, most_full) = (evidence::QUICK_MINUTES, evidence::FULL_MINUTES);
        out!(
            "all: {quick:.1} min with --quick, target at most {most_quick}; {full:.1} min without, target at most {most_full}"
        )?;
    }
    Ok(Exit::Success)
}

/// Runs one experiment, and returns its result.
fn run_experiment(
    folder: &Path,
    name: &str,
    args: &Args,
    signals: &Signals,
) -> CliResult<Experiment> {
    let began = Instant::now();
    let about = match about(folder, name, signals) {
        Ok(about) => about,
        Err(why) => {
            return Ok(Experiment {
                schema: evidence::SCHEMA,
                experiment: name.to_owned(),
                title: name.to_owned(),
                not_run: Some(why.0),
                ..Experiment::default()
            });
        }
    };
    let minutes = if args.quick {
        about.minutes.quick
    } else {
        about.minutes.full
    };
    let minutes = (minutes * TIMEOUT).clamp(1.0, MAX_MINUTES);
    let not_run = |NoResultReason(why): NoResultReason| Experiment {
        seconds: began.elapsed().as_secs_f64(),
        not_run: Some(why),
        ..about.results(name)
    };
    let scratch = match ExperimentFolder::new(&args.dir, name) {
        Ok(scratch) => scratch,
        Err(why) => return Ok(not_run(why)),
    };
    let tarn = find("tarn")?;
    let mut words = vec!["measure".into(), "--tarn".into(), tarn.into_os_string()];
    words.extend(["--dir".into(), scratch.0.as_os_str().to_owned()]);
    if args.quick {
        words.push("--quick".into());
    }
    words.extend(args.options.iter().cloned());
    let program = folder.join(format!("{name}.py"));
    let ended = match Child::start(&program, &words) {
        Ok(child) => child.wait(Duration::from_secs_f64(minutes * 60.0), signals),
        Err(e) => ChildOutcome::Failed(format!("{e:#}")),
    };
    let found = match ended {
        ChildOutcome::Succeeded(text) => {
            Experiment::parse(&text).map_err(|e| NoResultReason(e.to_string()))
        }
        ChildOutcome::Failed(why) => Err(NoResultReason(why)),
        ChildOutcome::Interrupted => Err(NoResultReason::interrupted()),
    };
    Ok(match found {
        Ok(found) => Experiment {
            seconds: began.elapsed().as_secs_f64(),
            experiment: name.to_owned(),
            ..found
        },
        Err(why) => not_run(why),
    })
}

/// A folder of an experiment, which goes with it.
struct ExperimentFolder(PathBuf);

impl ExperimentFolder {
    /// Makes one, or returns the need that is not met.
    fn new(parent: &Path, experiment: &str) -> Result<Self, NoResultReason> {
        // One that cannot be removed is not in the way of the next.
        let name = format!("tarn-reproduce-{}-{experiment}", std::process::id());
        let path = parent.join(name);
        std::fs::create_dir(&path).map_err(|e| {
            NoResultReason(format!(
                "needs a folder for its files, {} cannot be made: {e}; name another place with --dir",
                path.display()
            ))
        })?;
        Ok(Self(path))
    }
}

impl Drop for ExperimentFolder {
    fn drop(&mut self) {
        if let Err(e) = Trees::new().remove(&self.0) {
            message!("warning: {e}");
        }
    }
}

/// The file for the results that the page is drawn from.
fn kept(page: &Path, named: Option<&Path>) -> CliResult<PathBuf> {
    let kept = named.map_or_else(|| page.with_extension("json"), Path::to_owned);
    if page.file_name().is_none() || kept == page {
        let message = format!(
            "--report {}: give the page's file, which does not end in .json and is not that of --results",
            page.display()
        );
        return Err(CliError::new(Exit::Usage, message));
    }
    Ok(kept)
}

fn write(results: &Results, page: &Path, kept: &Path) -> CliResult<()> {
    let text =
        serde_json::to_string_pretty(results).map_err(|e| CliError::new(Exit::Internal, e))?;
    write_file(page, drawn(results, page, kept).as_bytes(), "--report")?;
    write_file(kept, text.as_bytes(), "--results")
}

/// Writes a file whole: a reader never sees half of it. An option names another one.
fn write_file(path: &Path, bytes: &[u8], option: &str) -> CliResult<()> {
    tarn_console::whole::replace(path, bytes, None)
        .with_context(|| {
            format!(
                "cannot write {}: name another file with {option}",
                path.display()
            )
        })
        .exit(Exit::State)
}
