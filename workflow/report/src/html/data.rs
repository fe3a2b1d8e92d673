//! The data that the page's JavaScript draws: compact rows, times in microseconds.

use super::MAX_DRAWN;
use super::links::PageLinks;
use super::text::micros;
use crate::names::{RunNames, kind_name};
use crate::summary::Summary;
use crate::trace::{AttemptKey, RunTrace, is_stopped};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tarn_types::history::{Attempt, AttemptEnd, TransferEnd, TransferHistory};
use tarn_types::id::TransferId;
use tarn_types::part::{Place, TransferKind};
use tarn_types::units::Nanos;

/// Everything that is drawn.
#[derive(Serialize)]
pub(super) struct Drawing {
    /// The run's length.
    end: u64,
    /// Wall-clock seconds since 1970 at the run's start; none for a resumed run, whose time stood still between.
    started: Option<u64>,
    steps: Vec<String>,
    nodes: Vec<NodeDrawing>,
    kinds: [&'static str; 5],
    /// Rows of [`attempt`].
    attempts: Vec<Value>,
    /// Rows of [`transfer`].
    transfers: Vec<Value>,
    /// Reasons, which many transfers share.
    texts: Vec<String>,
}

#[derive(Serialize)]
struct NodeDrawing {
    name: String,
    cores: u32,
    tiers: Vec<TierDrawing>,
}

#[derive(Serialize)]
struct TierDrawing {
    name: String,
    capacity: Vec<(u64, u64)>,
    fill: Vec<(u64, u64)>,
    peak: u64,
}

const KINDS: [TransferKind; 5] = [
    TransferKind::ExternalIn,
    TransferKind::ExternalOut,
    TransferKind::Peer,
    TransferKind::Promote,
    TransferKind::Demote,
];

pub(super) fn drawing(
    trace: &RunTrace,
    names: &RunNames<'_>,
    links: &PageLinks,
    summary: &Summary,
) -> Drawing {
    let attempts = trace
        .attempts()
        .map(|(key, a)| (trace.attempt_end(a) - a.started, (key, a)));
    let transfers = trace.history.transfers.iter();
    let transfers = transfers.map(|(id, t)| (trace.transfer_end(t) - t.ordered, (*id, t)));
    let mut texts = DrawingTexts::default();
    let transfers = longest(transfers).into_iter();
    let transfers: Vec<Value> = transfers
        .map(|(id, t)| transfer(trace, names, &mut texts, id, t))
        .collect();
    Drawing {
        end: micros(trace.end()),
        started: (summary.resumed == 0).then_some(summary.started),
        steps: summary.steps.iter().map(|s| s.name.clone()).collect(),
        nodes: nodes(summary),
        kinds: KINDS.map(kind_name),
        attempts: longest(attempts)
            .into_iter()
            .map(|(key, a)| attempt(trace, names, links, key, a))
            .collect(),
        transfers,
        texts: texts.list,
    }
}

/// The [`MAX_DRAWN`] longest, in their own order.
fn longest<T>(all: impl Iterator<Item = (Nanos, T)>) -> Vec<T> {
    let mut all: Vec<(usize, Nanos, T)> = all
        .enumerate()
        .map(|(n, (length, t))| (n, length, t))
        .collect();
    if all.len() > MAX_DRAWN {
        all.sort_by_key(|(n, length, _)| (std::cmp::Reverse(*length), *n));
        all.truncate(MAX_DRAWN);
        all.sort_by_key(|(n, ..)| *n);
    }
    all.into_iter().map(|(.., t)| t).collect()
}

#[derive(Default)]
struct DrawingTexts {
    list: Vec<String>,
    known: BTreeMap<String, usize>,
}

impl DrawingTexts {
    fn number(&mut self, text: String) -> usize {
        if let Some(n) = self.known.get(&text) {
            return *n;
        }
        self.known.insert(text.clone(), self.list.len());
        self.list.push(text);
        self.list.len() - 1
    }
}

fn nodes(summary: &Summary) -> Vec<NodeDrawing> {
    let curve = |points: &[(u64, u64)]| points.iter().map(|(t, b)| (micros(*t), *b)).collect();
    let nodes = summary.nodes.iter().map(|n| NodeDrawing {
        name: n.name.clone(),
        cores: n.cores,
        tiers: n
            .tiers
            .iter()
            .map(|t| TierDrawing {
                name: t.name.clone(),
                capacity: curve(&t.capacity),
                fill: curve(&t.fill),
                peak: t.peak,
            })
            .collect(),
    });
    nodes.collect()
}

/// `[step, name, attempt, [nodes], cores, assigned, inputs there, started, ended, how, prepare, run, commit,
/// user, system, read, written, input, retained, output, log]`
fn attempt(
    trace: &RunTrace,
    names: &RunNames<'_>,
    links: &PageLinks,
    key: AttemptKey,
    a: &Attempt,
) -> Value {
    let (id, _) = key;
    let how = match &a.ended {
        Some((_, AttemptEnd::Committed { .. })) => "committed",
        Some(_) if is_stopped(a) => "stopped",
        Some((_, AttemptEnd::Failed { .. })) => "failed",
        Some((_, AttemptEnd::Interrupted)) => "interrupted",
        None => "running",
    };
    let inputs = trace.inputs.get(&key).copied().unwrap_or_default();
    let made = trace.written.get(&key).copied();
    let u = &a.usage;
    let cores = trace.cores(id.step);
    let nodes: Vec<u32> = a.nodes.iter().map(|s| s.node.0).collect();
    let times = [
        a.assigned,
        trace.inputs_there(key, a),
        a.started,
        trace.attempt_end(a),
    ]
    .map(micros);
    json!([
        id.step.0,
        names.instance(id),
        a.attempt,
        nodes,
        cores,
        times[0],
        times[1],
        times[2],
        times[3],
        how,
        micros(u.prepare),
        micros(u.wall),
        micros(u.commit),
        micros(u.user),
        micros(u.system),
        u.read,
        u.written,
        inputs.read,
        inputs.retained,
        made.unwrap_or(0),
        links.log(&names.step(id.step), id, a.attempt),
    ])
}

/// `[id, data, kind, [nodes it leaves], node it goes to or -1, from, to, ordered, began to move, ended, bytes,
/// how, reason]`
fn transfer(
    trace: &RunTrace,
    names: &RunNames<'_>,
    texts: &mut DrawingTexts,
    id: TransferId,
    t: &TransferHistory,
) -> Value {
    let end = trace.transfer_end(t);
    let (how, began) = match &t.ended {
        Some((_, TransferEnd::Done { took, .. })) => {
            ("done", end.saturating_sub(*took).max(t.ordered))
        }
        Some((_, TransferEnd::Failed(_))) => ("failed", t.ordered),
        Some((_, TransferEnd::Interrupted)) => ("interrupted", t.ordered),
        None => ("moving", t.ordered),
    };
    let node = |p: &Place| match p {
        Place::Node(tier_ref) => i64::from(tier_ref.node.0),
        _ => -1,
    };
    let mut from: Vec<i64> = t
        .order
        .parts
        .iter()
        .map(|p| node(&p.from))
        .filter(|n| *n >= 0)
        .collect();
    from.sort_unstable();
    from.dedup();
    let source = match t.order.parts.first() {
        Some(first) if t.order.parts.iter().any(|p| p.from != first.from) => {
            format!("{} and others", names.place(&first.from))
        }
        Some(first) => names.place(&first.from),
        None => String::new(),
    };
    let bytes = if how == "done" { t.bytes() } else { t.expected };
    json!([
        id.to_string(),
        names.version(t.order.data, t.order.version),
        KINDS.iter().position(|k| *k == t.order.kind).unwrap_or(0),
        from,
        node(&t.order.to),
        source,
        names.place(&t.order.to),
        micros(t.ordered),
        micros(began),
        micros(end),
        bytes,
        how,
        texts.number(names.reason(&t.why)),
    ])
}
