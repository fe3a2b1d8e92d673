//! The display of an active run: bars on a terminal, plain lines elsewhere, events as JSON.

use crate::print::{self, message};
use crate::run::changes::StepChanges;
use crate::run::dropped::Dropped;
use crate::run_log;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tarn_ports::Progress;
use tarn_ports::Record;
use tarn_types::action::{Do, Subject};
use tarn_types::event::{AttemptOutcome, Event, Imaged, Output, Start};
use tarn_types::history::{History, NodeLoss};
use tarn_types::id::{DataId, InstanceId, StepId};
use tarn_types::reason::Reason;
use tarn_types::units::{Bytes, Elapsed, Nanos, SECOND};
use tarn_types::workflow::Workflow;

/// How often the bars are drawn.
const TICK: Duration = Duration::from_millis(100);

/// Sees every record once it is durable.
pub(crate) struct Watcher {
    json: bool,
    history: History,
    bars: Option<Bars>,
    changes: StepChanges,
    dropped: Dropped,
    /// Steps whose reason to run again was printed.
    explained: BTreeSet<StepId>,
}

struct Bars {
    steps: ProgressBar,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// `history`: the history in the log of a resumed run.
    pub(crate) fn new(json: bool, start: &Start, history: History, progress: Progress) -> Self {
        let names: Vec<String> = start.workflow.data.iter().map(|d| d.name.clone()).collect();
        let bars = (!json && std::io::stderr().is_terminal()).then(|| Bars::new(progress, names));
        Self {
            json,
            history,
            bars,
            changes: StepChanges::default(),
            dropped: Dropped::default(),
            explained: BTreeSet::new(),
        }
    }

    /// When a step runs, prints why it runs again.
    pub(crate) fn report_changes(&mut self, changes: StepChanges, w: &Workflow) {
        if !self.json {
            for note in changes.notes(w, &BTreeSet::new()) {
                message!("note: {note}");
            }
        }
        self.changes = changes;
    }

    /// All that has happened.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn see(&mut self, record: &Record) {
        self.history
            .apply(record.now, &record.event, &record.actions);
        run_log::log_record(&self.history, record);
        if self.json {
            // A record that cannot be printed does not stop the run; the error appears at its end.
            let _ = print::json(record);
            return;
        }
        if let Some(line) = self.event_line(&record.event) {
            self.print_line(record.now, &line);
        }
        let again = self.report_reruns(record);
        let failure = failure_of(&record.event);
        for action in &record.actions {
            if is_of_those(&action.what, &again) {
                continue;
            }
            if matches!(&action.why, Reason::Failed { message } | Reason::GaveUp { message }
                if failure.is_some_and(|t| message.contains(t)))
            {
                continue;
            }
            if let Some(line) = self.action_line(&action.what, &action.why) {
                self.print_line(record.now, &line);
            }
        }
        if let Some(bars) = &self.bars {
            let all = self.history.instances.len() as u64;
            let done = self
                .history
                .instances
                .values()
                .filter(|i| i.state.is_done())
                .count();
            bars.steps.set_length(all);
            bars.steps.set_position(done as u64);
        }
    }

    fn print_line(&self, now: u64, line: &str) {
        let text = format!("[{:>8.2} s] {line}", now as f64 / SECOND as f64);
        match &self.bars {
            Some(bars) => bars.steps.println(print::plain(&text)),
            None => message!("{text}"),
        }
    }

    /// Says which steps run again, and why, before they do; those of whose earlier results nothing is left.
    fn report_reruns(&mut self, record: &Record) -> BTreeSet<InstanceId> {
        let actions = record.actions.iter();
        let again = actions.filter_map(|a| self.dropped.see(a)).collect();
        let Some(start) = &self.history.start else {
            return again;
        };
        let w = &start.workflow;
        let mut lines = self.dropped.take(w, &self.changes);
        for action in &record.actions {
            let Do::Run(run) = &action.what else { continue };
            let id = run.instance.step;
            if self.explained.insert(id) {
                let name = &w.step(id).name;
                let why = self.changes.of(name);
                lines.extend(why.map(|why| format!("{name} runs again: {why}")));
            }
        }
        lines
            .iter()
            .for_each(|line| self.print_line(record.now, line));
        again
    }

    /// Names the outputs to which an instance wrote nothing.
    fn name_empty_outputs(&self, outputs: &[Output]) -> String {
        let Some(start) = &self.history.start else {
            return String::new();
        };
        let empty = outputs.iter().filter(|o| o.parts.is_empty());
        let names: Vec<_> = empty
            .map(|o| format!("`{}`", start.workflow.dataset(o.data).name))
            .collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("; it wrote nothing to {}", names.join(", "))
        }
    }

    fn event_line(&self, event: &Event) -> Option<String> {
        match event {
            Event::Ended {
                instance,
                ended,
                usage,
                ..
            } => Some(self.ended_line(*instance, ended, usage.wall)),
            Event::Image { instance, what, .. } => self.image_line(*instance, what),
            Event::TransferFailed { id, failure, .. } => {
                Some(format!("transfer {id} failed: {}", failure.message))
            }
            Event::NodeLost { node, why } => {
                let mut text = format!("{} is lost ({why})", self.history.node_name(*node));
                if let Some(lost) = self.history.losses.last() {
                    text += &self.name_lost_data(lost);
                }
                Some(text)
            }
            Event::NodeBack { node, whole, .. } => Some(format!(
                "{} is back with {} replica(s)",
                self.history.node_name(*node),
                whole.len()
            )),
            Event::Interrupted { signal } => Some(format!("stopping (signal {signal})")),
            Event::Resumed { found, .. } => Some(format!(
                "the run continues; {} replica(s) found",
                found.len()
            )),
            _ => None,
        }
    }

    fn ended_line(&self, instance: InstanceId, ended: &AttemptOutcome, wall: Nanos) -> String {
        let name = self.history.instance_name(instance);
        match ended {
            AttemptOutcome::Committed {
                undeclared,
                outputs,
            } => {
                let mut text = format!(
                    "{name} done in {}{}",
                    Elapsed(wall),
                    self.name_empty_outputs(outputs)
                );
                if undeclared.files > 0 {
                    text += &format!(
                        "; removed {} undeclared file(s), {}: {}",
                        undeclared.files,
                        Bytes(undeclared.bytes),
                        undeclared.names.join(", ")
                    );
                }
                text
            }
            AttemptOutcome::Failed {
                failure, log_tail, ..
            } => {
                let quoted: String = log_tail.lines().map(|l| format!("\n    | {l}")).collect();
                // The message names the step too, for those who see nothing else.
                let own = format!("step `{name}`: ");
                let message = failure.message.trim_start_matches(&own);
                format!("{name} failed: {message}{quoted}")
            }
        }
    }

    /// Nothing for images that are taken and copied at intervals: `tarn status` and the report show them.
    fn image_line(&self, instance: InstanceId, what: &Imaged) -> Option<String> {
        let name = self.history.instance_name(instance);
        Some(match what {
            Imaged::Taken { .. } | Imaged::Copied { .. } => return None,
            Imaged::NotTaken { why } => {
                format!("{name}: no image of its processes was taken, it continues: {why}")
            }
            Imaged::Restored { id } => format!("{name} resumes from image {id}"),
            Imaged::NotCopied { id, at, why } => format!(
                "{name}: no copy of image {id} was made on {}, it continues: {why}",
                self.history.node_name(at.node)
            ),
            Imaged::NotRestored { id, why } => {
                format!("{name}: image {id} cannot be used and was removed: {why}")
            }
        })
    }

    /// The data that a lost node had: by name if it was nowhere else and can be made again.
    fn name_lost_data(&self, lost: &NodeLoss) -> String {
        /// So many names, then how many more.
        const NAMED: usize = 5;
        let start = self.history.start.iter();
        let data = start.flat_map(|start| start.workflow.data.iter().enumerate());
        let made = data.filter(|(_, dataset)| dataset.source.is_none());
        let alone: Vec<String> = made
            .filter_map(|(at, dataset)| {
                let bytes = lost.alone.get(&DataId(at as u32))?;
                Some(format!("{} ({})", dataset.name, Bytes(*bytes)))
            })
            .collect();
        if alone.is_empty() {
            return match lost.replicas {
                0 => String::new(),
                _ => format!(
                    "; of all its {} there are copies elsewhere",
                    Bytes(lost.bytes)
                ),
            };
        }
        let named = alone[..alone.len().min(NAMED)].join(", ");
        let more = match alone.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("; only there: {named}{more}; what steps need of it is made again")
    }

    fn action_line(&self, what: &Do, why: &Reason) -> Option<String> {
        let reason = || self.history.explain(why);
        match what {
            Do::Note {
                about: Subject::Instance(id),
            } if !matches!(
                why,
                Reason::WaitForCores { .. }
                    | Reason::WaitForData { .. }
                    | Reason::WaitForTurn { .. }
            ) =>
            {
                Some(format!("{}: {}", self.history.instance_name(*id), reason()))
            }
            Do::Note {
                about: Subject::Run,
            } => Some(reason()),
            Do::Note { .. } if matches!(why, Reason::Failed { .. } | Reason::GaveUp { .. }) => {
                Some(reason())
            }
            Do::Run(run) if matches!(why, Reason::Retry { .. } | Reason::Restart { .. }) => Some(
                format!("{}: {}", self.history.instance_name(run.instance), reason()),
            ),
            Do::Reuse { instance, .. } => Some(format!(
                "{} unchanged",
                self.history.instance_name(*instance)
            )),
            _ => None,
        }
    }

    pub(crate) fn end(&mut self) {
        if let Some(mut bars) = self.bars.take() {
            bars.stop.store(true, Ordering::Relaxed);
            if let Some(thread) = bars.thread.take() {
                let _ = thread.join();
            }
            bars.steps.finish_and_clear();
        }
    }
}

/// Whether this is the reuse of an earlier result of one of these instances, or that nothing is left of that.
fn is_of_those(what: &Do, again: &BTreeSet<InstanceId>) -> bool {
    match what {
        Do::Reuse { instance, .. }
        | Do::Note {
            about: Subject::Instance(instance),
        } => again.contains(instance),
        _ => false,
    }
}

/// The failure message of an event: the engine gives the same as its reason to go no further.
fn failure_of(event: &Event) -> Option<&str> {
    match event {
        Event::Ended {
            ended: AttemptOutcome::Failed { failure, .. },
            ..
        }
        | Event::TransferFailed { failure, .. } => Some(&failure.message),
        _ => None,
    }
}

impl Bars {
    fn new(progress: Progress, names: Vec<String>) -> Self {
        let steps = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {elapsed}  {wide_msg}");
        steps.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let stop = Arc::new(AtomicBool::new(false));
        let (bar, flag) = (steps.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut rate = SmoothedRate::default();
            while !flag.load(Ordering::Relaxed) {
                bar.set_message(rate.describe(&progress, &names));
                bar.tick();
                std::thread::sleep(TICK);
            }
        });
        Self {
            steps,
            stop,
            thread: Some(thread),
        }
    }
}

/// The rate of all transfers together, smoothed over about a second.
#[derive(Default)]
struct SmoothedRate {
    done: u64,
    per_second: f64,
}

impl SmoothedRate {
    fn describe(&mut self, progress: &Progress, names: &[String]) -> String {
        let moving = progress.transfers();
        let (done, total) = moving
            .iter()
            .fold((0, 0), |(d, t), m| (d + m.done, t + m.total));
        let now = done.saturating_sub(self.done) as f64 / TICK.as_secs_f64();
        self.per_second = 0.9 * self.per_second + 0.1 * now;
        self.done = done;
        let running = progress.steps().len();
        let Some(first) = moving.first() else {
            return format!("{running} running");
        };
        let left = match self.per_second {
            r if r > 1.0 => format!(
                ", {} left",
                Elapsed((total.saturating_sub(done) as f64 / r * 1e9) as u64)
            ),
            _ => String::new(),
        };
        let name = names.get(first.data.at()).map_or("", String::as_str);
        let more = if moving.len() > 1 {
            format!(" +{}", moving.len() - 1)
        } else {
            String::new()
        };
        format!(
            "{running} running; moving {name}{more}: {} of {} at {}/s{left}",
            Bytes(done),
            Bytes(total),
            Bytes(self.per_second as u64)
        )
    }
}
