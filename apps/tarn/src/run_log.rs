//! The structured log of a run (`--log`): each line shows a record of the event log, once it is durable. Nothing is
//! logged elsewhere, so that the two never differ.

use crate::error::{CliResult, ExitWith};
use crate::globals::{Globals, LogFormat, LogTo, Logged};
use anyhow::Context;
use std::fs::File;
use std::sync::Mutex;
use tarn_ports::Record;
use tarn_types::action::{Action, Do};
use tarn_types::codes::Exit;
use tarn_types::event::{AttemptOutcome, Event, Imaged};
use tarn_types::history::History;
use tarn_types::id::{DataId, TierRef, TransferId};
use tarn_types::layout::StateDir;
use tarn_types::part::Place;
use tarn_types::units::SECOND;
use tracing::{Level, debug, info, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The log's name in a run's folder.
const NAME: &str = "tarn.log";

/// Begins to log, if that is requested.
pub(crate) fn start(globals: &Globals, state: &StateDir, run: &str) -> CliResult<()> {
    let Some(logged) = globals.logged() else {
        return Ok(());
    };
    match globals.log_to {
        LogTo::Stderr => log(logged, std::io::stderr),
        LogTo::Run => {
            let path = state.run(run).join(NAME);
            let file = File::options().create(true).append(true).open(&path);
            let file = file
                .with_context(|| format!("cannot write {}", path.display()))
                .exit(Exit::State)?;
            log(logged, Mutex::new(file));
        }
    }
    Ok(())
}

fn log<W: for<'a> MakeWriter<'a> + Send + Sync + 'static>(logged: Logged, to: W) {
    let logs = tracing_subscriber::fmt()
        .with_max_level(logged.level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(to);
    // Messages of libraries are for their developers.
    let own = Targets::new()
        .with_target("tarn", logged.level)
        .with_default(logged.level.min(Level::WARN));
    match logged.format {
        LogFormat::Text => logs.finish().with(own).init(),
        LogFormat::Json => logs.json().flatten_event(true).finish().with(own).init(),
    }
}

/// Logs a record; `history` has it already.
pub(crate) fn log_record(history: &History, record: &Record) {
    if tracing::level_filters::LevelFilter::current() == tracing::level_filters::LevelFilter::OFF {
        return;
    }
    let at = seconds(record.now);
    event(history, at, &record.event);
    for action in &record.actions {
        order(history, at, action);
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

fn event(history: &History, at: f64, event: &Event) {
    match event {
        Event::Started(start) => {
            info!(
                at,
                run = start.run,
                nodes = start.cluster.nodes.len(),
                job = start.allocation,
                "the run begins"
            );
        }
        Event::Resumed { found, .. } => info!(at, replicas = found.len(), "the run goes on"),
        Event::Interrupted { signal } => warn!(at, signal, "the run is interrupted"),
        Event::NodeLost { node, why } => {
            warn!(at, node = history.node_name(*node), why, "node lost");
        }
        Event::NodeBack { node, whole, .. } => {
            info!(
                at,
                node = history.node_name(*node),
                replicas = whole.len(),
                "node back"
            );
        }
        Event::Ended {
            instance,
            attempt,
            ended,
            usage,
        } => {
            let step = history.instance_name(*instance);
            attempt_end(at, &step, *attempt, ended, seconds(usage.wall));
        }
        Event::TransferDone {
            id, bytes, took, ..
        } => transfer_done(history, at, *id, *bytes, seconds(*took)),
        Event::TransferFailed { id, failure, .. } => {
            let (data, to) = transfer(history, *id);
            warn!(at, transfer = id.0, data, to, kind = ?failure.kind, why = failure.message, "transfer failed");
        }
        Event::SourceFailed { failure, .. } => {
            warn!(at, why = failure.message, "source not listed")
        }
        Event::Capacity { tier_ref, bytes } => {
            debug!(
                at,
                node = history.node_name(tier_ref.node),
                bytes,
                "a tier's room has changed"
            );
        }
        Event::Image {
            instance,
            attempt,
            what,
        } => {
            let step = history.instance_name(*instance);
            image(history, at, &step, *attempt, what);
        }
        Event::SourceListed { .. } | Event::Evicted { .. } | Event::Timer => {}
    }
}

fn transfer_done(history: &History, at: f64, id: TransferId, bytes: u64, took: f64) {
    let (data, to) = transfer(history, id);
    info!(at, transfer = id.0, data, to, bytes, took, "transfer done");
}

fn attempt_end(at: f64, step: &str, attempt: u32, ended: &AttemptOutcome, wall: f64) {
    match ended {
        AttemptOutcome::Committed { .. } => info!(at, step, attempt, wall, "step committed"),
        AttemptOutcome::Failed { failure, .. } => {
            warn!(at, step, attempt, wall, kind = ?failure.kind, why = failure.message, "step failed");
        }
    }
}

/// Logs the fate of an image of a step's processes.
fn image(history: &History, at: f64, step: &str, attempt: u32, what: &Imaged) {
    match what {
        Imaged::Taken {
            id,
            bytes,
            stopped,
            took,
        } => {
            let (image, stopped, took) = (id.to_string(), seconds(*stopped), seconds(*took));
            info!(
                at,
                step, attempt, image, bytes, stopped, took, "image taken"
            );
        }
        Imaged::NotTaken { why } => warn!(at, step, attempt, why, "no image taken"),
        Imaged::Restored { id } => {
            info!(
                at,
                step,
                attempt,
                image = id.to_string(),
                "goes on from an image"
            );
        }
        Imaged::Copied {
            id,
            at: tier_ref,
            took,
        } => {
            let (image, node, took) = (
                id.to_string(),
                history.node_name(tier_ref.node),
                seconds(*took),
            );
            info!(at, step, attempt, image, node, took, "image copied");
        }
        Imaged::NotCopied {
            id,
            at: tier_ref,
            why,
        } => {
            let (image, node) = (id.to_string(), history.node_name(tier_ref.node));
            warn!(at, step, attempt, image, node, why, "image not copied");
        }
        Imaged::NotRestored { id, why } => {
            warn!(
                at,
                step,
                attempt,
                image = id.to_string(),
                why,
                "image not restored"
            );
        }
    }
}

/// Its datasets, and where it goes.
fn transfer(history: &History, id: TransferId) -> (String, String) {
    let Some(known) = history.transfers.get(&id) else {
        return Default::default();
    };
    let mut data: Vec<String> = Vec::new();
    for part in known.order.parts.iter().map(|m| m.part) {
        let name = data_name(history, part.data);
        if !data.contains(&name) {
            data.push(name);
        }
    }
    (data.join(","), place_name(history, &known.order.to))
}

fn data_name(history: &History, data: DataId) -> String {
    let start = history.start.as_ref();
    let dataset = start.and_then(|s| s.workflow.data.get(data.at()));
    dataset.map_or_else(|| data.to_string(), |d| d.name.clone())
}

fn place_name(history: &History, place: &Place) -> String {
    match place {
        Place::Node(tier_ref) => history.node_name(tier_ref.node),
        Place::Source => "source".into(),
        Place::External(path) => path.display().to_string(),
        Place::Drained => "drained".into(),
    }
}

fn order(history: &History, at: f64, action: &Action) {
    let why = || history.explain(&action.why);
    match &action.what {
        Do::Run(run) => {
            let name = |tier_ref: &TierRef| history.node_name(tier_ref.node);
            let nodes: Vec<_> = run.nodes.iter().map(name).collect();
            let step = history.instance_name(run.instance);
            info!(
                at,
                step,
                attempt = run.attempt,
                nodes = nodes.join(","),
                "step begins"
            );
        }
        Do::Transfer(t) => {
            let (data, to) = transfer(history, t.id);
            debug!(
                at,
                transfer = t.id.0,
                data,
                to,
                why = why(),
                "transfer ordered"
            );
        }
        Do::Evict {
            part, at: place, ..
        } => {
            debug!(
                at,
                data = data_name(history, part.data),
                from = place_name(history, place),
                why = why(),
                "eviction"
            );
        }
        Do::Stop { instance, attempt } => {
            let step = history.instance_name(*instance);
            info!(at, step, attempt, why = why(), "step is stopped");
        }
        Do::Finish { outcome } => info!(at, ?outcome, "the run ends"),
        _ => {}
    }
}
