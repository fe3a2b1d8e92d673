//! `tarn plan`: the same engine in virtual time. It shows the decisions that `tarn run` would make, as far as run times and sizes
//! are known.

use crate::error::{CliError, CliResult, ExitWith};
use crate::globals::Globals;
use crate::options::RunArgs;
use crate::print::{self, message, out};
use crate::run::allocation::{AllocationRequest, ConnectedAllocation};
use crate::run::changes::{self, StepChanges};
use crate::run::dropped::Dropped;
use crate::run::new_run::{NewRun, PriorResults};
use crate::run::others::PriorDatasets;
use crate::run::world::emulation;
use crate::state::{self, open_catalogue};
use crate::{cluster, workflow};
use entries::Supposed;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tarn_engine::Engine;
use tarn_node::RereadScope;
use tarn_ports::{Journal, JournalError, Record};
use tarn_report::Summary;
use tarn_simulator::{Estimates, SimEntry, Simulation};
use tarn_types::action::{Do, Outcome};
use tarn_types::cluster::Cluster;
use tarn_types::codes::Exit;
use tarn_types::event::{Event, RunError, Start};
use tarn_types::history::History;
use tarn_types::id::{DataId, InstanceId, StepId, TierRef};
use tarn_types::layout::StateDir;
use tarn_types::merge;
use tarn_types::part::{PartInfo, StoreKey};
use tarn_types::reason::Reason;
use tarn_types::units::{Bytes, Elapsed, Nanos, SECOND};
use tarn_types::workflow::{Dataset, Workflow};

mod cached;
mod entries;

/// Run time assumed for a step without a `time` that has never run.
const ASSUMED_RUN_TIME: Nanos = SECOND;
/// Size assumed for an output without a `size` that was never made.
const ASSUMED_BYTES: u64 = 1 << 20;
/// A plan that takes longer than this shows that it makes progress.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// Allocation unit of a tier.
const BLOCK: u64 = 4096;

/// The folder that the nodes of an allocation make in the state folder.
const HOSTS: &str = "hosts";

struct PlanJournal(Vec<Record>);

impl Journal for PlanJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.0.extend_from_slice(records);
        Ok(())
    }
}

/// Says now and then how far a long plan has come.
struct SignOfLife {
    planned: u64,
    last_sign: Instant,
}

impl SignOfLife {
    fn new() -> Self {
        Self {
            planned: 0,
            last_sign: Instant::now(),
        }
    }

    /// A progress message, at most one in the time `every`.
    fn see(&mut self, record: &Record, every: Duration) -> Option<String> {
        let runs = record.actions.iter();
        let runs = runs.filter(|a| matches!(a.what, Do::Run(_) | Do::Reuse { .. }));
        self.planned += runs.count() as u64;
        if self.last_sign.elapsed() < every {
            return None;
        }
        self.last_sign = Instant::now();
        Some(format!(
            "planning: {} steps have their place so far",
            self.planned
        ))
    }
}

/// Observations of earlier runs: the run times of steps, and their outputs.
#[derive(Debug, Clone, Default)]
struct EarlierObservations {
    run_times: BTreeMap<String, (Nanos, u64)>,
    outputs: BTreeMap<String, (u64, u64, u64)>,
}

/// A state folder that is not there before a plan is not there after it: the nodes of an allocation need one while they are looked at.
struct Unmade(Option<PathBuf>);

impl Unmade {
    fn of(state: &StateDir) -> Self {
        Self((!state.0.exists()).then(|| state.0.clone()))
    }
}

impl Drop for Unmade {
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            let aside = set_aside(&state);
            take_away(&state, aside.as_deref());
        }
    }
}

/// Renames the record of the nodes, if nothing else is in the state folder: a run that begins now does not find it. Returns the
/// new path.
fn set_aside(state: &Path) -> Option<PathBuf> {
    let aside = state.join(format!("{HOSTS}.plan-{}", std::process::id()));
    let is_all = has_only(state, HOSTS);
    (is_all && std::fs::rename(state.join(HOSTS), &aside).is_ok()).then_some(aside)
}

/// Removes it, and the folder if it is empty. A run that has begun meanwhile has more there, and gets back what it may have found.
fn take_away(state: &Path, aside: Option<&Path>) {
    if let Some(aside) = aside {
        let is_own = aside
            .file_name()
            .is_some_and(|name| has_only(state, Path::new(name)));
        if is_own || std::fs::rename(aside, state.join(HOSTS)).is_err() {
            let _ = std::fs::remove_dir_all(aside);
        }
    }
    // Not if there is anything in it.
    let _ = std::fs::remove_dir(state);
}

fn has_only(folder: &Path, name: impl AsRef<Path>) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.all(|entry| entry == name.as_ref().as_os_str())
}

pub(crate) fn plan(globals: &Globals, args: &RunArgs) -> CliResult {
    let (parsed, files) = workflow::load_with_files(&args.workflow, None)?;
    let w = &parsed.workflow;
    let dir = state::beside(globals, &w.folder)?;
    let workspace = state::workspace(&w.name, &dir);
    crate::run::lock::could_lock(&dir, &w.name)?;
    let reached = reach_nodes(globals, args, &dir, w)?;
    let elsewhere = reached.is_some();
    let cluster = match reached {
        Some(nodes) => nodes,
        None => cluster::discover(&args.machine, &dir)?,
    };
    let mover = crate::mover::trees();
    let new = NewRun {
        parsed: &parsed,
        files: &files,
        args,
        cluster: &cluster,
        elsewhere,
        state: &dir,
        workspace: &workspace,
        mover: &mover,
    };
    new.check()?;
    let mut prior = PriorResults::default();
    if dir.0.is_dir() {
        prior = new.find_prior(&open_catalogue(&dir)?)?;
        let instances = &mut prior.instances;
        crate::run::prior::held_still(instances, &cluster, &workspace, &dir, elsewhere);
    }
    let mut others = PriorDatasets::default();
    if dir.0.is_dir() || w.data.iter().any(|d| d.of.is_some()) {
        others = PriorDatasets::find(&dir, w, &cluster, elsewhere)?;
    }
    let looks = new.look_at_sources(RereadScope::All);
    let changes = new.find_changes(&looks, &others.data);
    let mut start = new.start(format!("{}-plan", w.name), prior, &others.data);
    if dir.0.is_dir() {
        crate::run::pinned::keep(&open_catalogue(&dir)?, &mut start)?;
    }
    crate::run::others::set_aside(&mut start.cluster, &mut start.prior_data);
    let seen = observe_newest_run(&dir, &start.workflow);
    let mut world = Simulation::new(&start, estimates(&start, seen, &looks));
    let (outcome, records) = simulate(&start, &mut world)?;
    show((globals, &dir), &start, &records, &world, &changes)?;
    let exit = match outcome {
        Outcome::Done => return Ok(Exit::Success),
        // That of the run.
        Outcome::Failed => Exit::WorkflowFailed,
        _ => Exit::NoSpace,
    };
    let text = "this workflow cannot be run here as it is";
    Err(CliError::new(exit, text))
}

/// The nodes of the allocation that this process is in, if it is in one. Their tarnds end here: a plan starts nothing.
fn reach_nodes(
    globals: &Globals,
    args: &RunArgs,
    state: &StateDir,
    w: &Workflow,
) -> CliResult<Option<Cluster>> {
    let _unmade = Unmade::of(state);
    let purpose = AllocationRequest {
        state,
        workflow: Some(w),
        margin: 0,
        log: globals.logged(),
    };
    let reached = ConnectedAllocation::here(&args.machine, &purpose)?;
    Ok(reached.map(|r| r.cluster().clone()))
}

/// Runs the engine in virtual time to its end: the outcome, and its decisions.
fn simulate(start: &Start, world: &mut Simulation) -> CliResult<(Outcome, Vec<Record>)> {
    let mut journal = PlanJournal(Vec::new());
    let mut alive = SignOfLife::new();
    let outcome = tarn_engine::drive(
        &mut Engine::new(),
        world,
        &mut journal,
        Event::Started(Box::new(start.clone())),
        0,
        &mut |r| {
            if let Some(sign) = alive.see(r, SIGN_OF_LIFE) {
                message!("{sign}");
            }
        },
    );
    Ok((outcome.exit(Exit::Internal)?, journal.0))
}

/// Run times and sizes from the newest run that has them.
fn observe_newest_run(dir: &StateDir, w: &Workflow) -> EarlierObservations {
    let mut seen = EarlierObservations::default();
    let Ok(Some(run)) = tarn_journal::runs::newest(dir, Some(&w.name)) else {
        return seen;
    };
    let Ok(history) = tarn_journal::runs::history(dir, &run.name) else {
        return seen;
    };
    let Some(start) = &history.start else {
        return seen;
    };
    for (id, instance) in &history.instances {
        let ended = instance
            .attempts
            .last()
            .filter(|_| instance.state.is_done());
        if let Some(attempt) = ended {
            let entry = seen
                .run_times
                .entry(start.workflow.step(id.step).name.clone())
                .or_default();
            *entry = (entry.0 + attempt.usage.wall, entry.1 + 1);
        }
    }
    for (name, info) in &history.parts {
        let dataset = &start.workflow.dataset(name.data).name;
        let entry = seen.outputs.entry(dataset.clone()).or_default();
        *entry = (
            entry.0 + info.bytes,
            entry.1 + info.files,
            entry.2.max(u64::from(name.origin) + 1),
        );
    }
    seen
}

fn estimates(start: &Start, seen: EarlierObservations, looks: &changes::Looks) -> Estimates {
    let w = &start.workflow;
    let listed = looks.iter();
    let listed = listed.map(|(id, look)| (*id, list(w.dataset(*id), look)));
    let sources: BTreeMap<DataId, Result<Vec<PartInfo>, RunError>> = listed.collect();
    let known = sources.iter();
    let known = known.filter_map(|(id, parts)| Some((*id, parts.as_deref().ok()?)));
    let of_others = start.prior_data.iter().map(|prior| {
        let parts = prior.parts.iter().map(|part| part.info.clone());
        (prior.data, parts.collect::<Vec<_>>())
    });
    let of_others: Vec<_> = of_others.collect();
    let known = known.chain(of_others.iter().map(|(id, parts)| (*id, &parts[..])));
    let supposed: Supposed = entries::suppose(w, known);
    let steps: Vec<_> = w.steps.iter().map(|s| (s.name.clone(), s.time)).collect();
    let times = seen.run_times;
    let datasets: Vec<_> = w.data.iter().map(|d| (d.name.clone(), d.size)).collect();
    Estimates {
        run_time: Box::new(move |id| match steps.get(id.step.at()) {
            Some((name, limit)) => match times.get(name) {
                Some((sum, n)) => sum / n,
                None => limit.map_or(ASSUMED_RUN_TIME, |l| l / 2),
            },
            None => ASSUMED_RUN_TIME,
        }),
        output: Box::new(move |id, data| {
            let Some((name, size)) = datasets.get(data.at()) else {
                return Vec::new();
            };
            let bytes = match seen.outputs.get(name) {
                Some((bytes, _, origins)) => bytes / origins.max(&1),
                None => size.unwrap_or(ASSUMED_BYTES),
            };
            let names = supposed.get(&(id.step, data));
            let names = names.and_then(|each| each.get(id.index as usize));
            match names {
                Some(names) => {
                    let share = bytes / (names.len() as u64).max(1);
                    let file = |name: &String| SimEntry::file(name.clone(), share);
                    names.iter().map(file).collect()
                }
                None => vec![SimEntry::file(format!("{name}.{}", id.index), bytes)],
            }
        }),
        sources,
        block: BLOCK,
    }
}

/// The parts of a real source.
fn list(
    dataset: &Dataset,
    look: &Result<tarn_node::SourceLook, RunError>,
) -> Result<Vec<PartInfo>, RunError> {
    let manifest = look.as_ref().map(|l| &l.tree).map_err(Clone::clone)?;
    let parts =
        merge::partition(manifest, dataset.partition, dataset.scatter.as_ref()).map_err(|e| {
            RunError {
                kind: tarn_types::event::RunErrorKind::Io,
                message: e.to_string(),
            }
        })?;
    let info = |(seq, (class, m)): (u32, (_, tarn_types::manifest::Manifest))| PartInfo {
        seq,
        class,
        bytes: m.bytes(),
        stored: m.bytes().next_multiple_of(BLOCK) + m.entries.len() as u64 * BLOCK,
        files: m.files(),
        hash: m.hash(),
        key: StoreKey(format!("{}.plan.{seq}", dataset.name)),
    };
    Ok((0u32..).zip(parts).map(info).collect())
}

/// One line of the plan.
#[derive(Debug, Serialize)]
struct PlanRow {
    at_ns: Nanos,
    step: String,
    nodes: Vec<String>,
    /// Its partitions: the space that each takes, and the tier.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    partitions: Vec<String>,
    why: String,
    /// The instance of which an earlier result is used.
    #[serde(skip)]
    reused: Option<InstanceId>,
}

/// The summary of a plan's records.
#[derive(Default)]
struct PlanSummary {
    history: History,
    rows: Vec<PlanRow>,
    /// The steps that run.
    runs: BTreeSet<StepId>,
    dropped: Dropped,
    /// Why an instance is where it is.
    placed: BTreeMap<InstanceId, String>,
}

impl PlanSummary {
    /// Says what cannot be run on the way.
    fn add(&mut self, start: &Start, record: &Record) {
        self.history
            .apply(record.now, &record.event, &record.actions);
        for action in &record.actions {
            if let Some(id) = self.dropped.see(action) {
                self.rows.retain(|row| row.reused != Some(id));
            }
            let why = || self.history.explain(&action.why);
            match &action.what {
                Do::Assign { instance, .. } => {
                    self.placed.insert(*instance, why());
                }
                Do::Run(run) => {
                    self.runs.insert(run.instance.step);
                    let names = run.nodes.iter().map(|s| self.history.node_name(s.node));
                    self.rows.push(PlanRow {
                        at_ns: record.now,
                        step: self.history.instance_name(run.instance),
                        nodes: names.collect(),
                        partitions: tarn_report::partition_texts(start, &run.partitions),
                        why: self.placed.get(&run.instance).cloned().unwrap_or_default(),
                        reused: None,
                    });
                }
                Do::Reuse { instance, .. } => self.rows.push(PlanRow {
                    at_ns: record.now,
                    step: self.history.instance_name(*instance),
                    nodes: Vec::new(),
                    partitions: Vec::new(),
                    why: why(),
                    reused: Some(*instance),
                }),
                Do::Note { .. }
                    if matches!(
                        action.why,
                        Reason::Failed { .. } | Reason::GaveUp { .. } | Reason::Incomplete { .. }
                    ) =>
                {
                    message!("error: {}", why());
                }
                _ => {}
            }
        }
    }

    fn notes(&self, state: &StateDir, start: &Start, changes: &StepChanges) -> Vec<String> {
        let mut notes = changes.notes(&start.workflow, &self.runs);
        notes.extend(self.dropped.notes(&start.workflow, changes));
        notes.extend(crate::run::unkept::notes(state, start, &self.history));
        notes.extend(cached::note(start, &self.history));
        notes.extend(crate::run::margin::at_risk(&start.workflow));
        notes
    }
}

fn show(
    (globals, state): (&Globals, &StateDir),
    start: &Start,
    records: &[Record],
    world: &Simulation,
    changes: &StepChanges,
) -> CliResult<()> {
    let mut plan = PlanSummary::default();
    for record in records {
        plan.add(start, record);
    }
    let summary = Summary::of(records).exit(Exit::Internal)?;
    let tiers = peaks(start, world);
    let notes = plan.notes(state, start, changes);
    if globals.json {
        let value = serde_json::json!({
            "schema": 1, "plan": plan.rows, "tiers": tiers, "summary": summary, "notes": notes
        });
        return print::json(&value);
    }
    if let Some(banner) = emulation(&start.cluster) {
        message!("{banner}");
    }
    out!("order and placement (times are estimates)")?;
    for row in &plan.rows {
        let at = format!("{:.2}", row.at_ns as f64 / SECOND as f64);
        let nodes = row.nodes.join(",");
        out!("{at:>10} s  {:<24} {nodes:<12} {}", row.step, row.why)?;
        for partition in &row.partitions {
            out!("{:>12}  partition {partition}", "")?;
        }
    }
    for note in &notes {
        out!("note      {note}")?;
    }
    print::text(&summary.to_string())?;
    for t in &tiers {
        out!(
            "tier      {}/{}: at most {} of {}",
            t.node,
            t.tier,
            Bytes(t.peak),
            Bytes(t.capacity)
        )?;
    }
    out!("time      {} estimated", Elapsed(summary.makespan_ns))
}

/// The fullest a tier gets.
#[derive(Debug, Serialize)]
struct Peak {
    node: String,
    tier: String,
    peak: u64,
    capacity: u64,
}

fn peaks(start: &Start, world: &Simulation) -> Vec<Peak> {
    let nodes = (0u32..).zip(&start.cluster.nodes);
    let of_node = |(n, node): (u32, &tarn_types::cluster::Node)| {
        let name = node.name.clone();
        let tiers = (0u32..).zip(node.tiers.clone());
        let peak = move |(t, tier): (u32, tarn_types::cluster::Tier)| Peak {
            node: name.clone(),
            tier: tier.name,
            peak: world.peak(TierRef {
                node: tarn_types::id::NodeId(n),
                tier: tarn_types::id::TierId(t),
            }),
            capacity: tier.capacity,
        };
        tiers.map(peak).collect::<Vec<_>>()
    };
    nodes.flat_map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_journal::RunLock;

    #[test]
    fn a_long_plan_shows_that_it_goes_on_and_a_short_one_says_nothing() {
        let mut alive = SignOfLife::new();
        let record = Record {
            seq: 0,
            now: 0,
            engine: 1,
            event: Event::Timer,
            actions: vec![tarn_types::action::Action {
                what: Do::Reuse {
                    instance: tarn_types::id::InstanceId {
                        step: tarn_types::id::StepId(0),
                        index: 0,
                    },
                    prior: 0,
                },
                why: tarn_types::reason::Reason::Needed,
            }],
        };
        assert_eq!(alive.see(&record, Duration::from_secs(3600)), None);
        let sign = alive.see(&record, Duration::ZERO);
        assert!(sign.is_some_and(|s| s.contains(" 2 steps")));
    }

    #[test]
    fn a_state_folder_that_a_run_has_begun_meanwhile_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = StateDir(dir.path().join("state"));
        let remembered = state.0.join("hosts/n1/links");
        let measured = || {
            let unmade = Unmade::of(&state);
            std::fs::create_dir_all(state.0.join("hosts/n1")).expect("a folder");
            std::fs::write(&remembered, "1").expect("a file");
            unmade
        };
        // Nobody else has come.
        drop(measured());
        assert!(!state.0.exists());
        // A run has come before what is remembered was moved, and after.
        let lock = state.lock("w");
        let run = || RunLock::take(&lock).expect("a lock");
        let unmade = measured();
        drop(run());
        drop(unmade);
        assert!(remembered.exists() && lock.exists());
        std::fs::remove_dir_all(&state.0).expect("it is there");
        measured().0 = None;
        let aside = set_aside(&state.0);
        assert!(aside.is_some() && !state.0.join("hosts").exists());
        drop(run());
        take_away(&state.0, aside.as_deref());
        let names = std::fs::read_dir(&state.0).expect("it is there");
        assert_eq!(names.count(), 2, "`hosts` and `locks`");
        assert!(remembered.exists() && lock.exists());
    }
}
