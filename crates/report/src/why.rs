//! `tarn why`: what was decided or failed, when, and the reason as it was logged. Nothing is inferred.

use crate::ReportError;
use crate::names::{Names, kind_name};
use crate::suggest::nearest;
use crate::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use tarn_base::action::{Action, Do, Outcome, Subject};
use tarn_base::event::{Ended, Event, Failure};
use tarn_base::id::{DataId, InstanceId, NodeId, Spot, StepId, TierId, TransferId};
use tarn_base::part::{Place, Transfer};
use tarn_base::reason::Reason;
use tarn_base::units::{Bytes, Elapsed, Time};
use tarn_base::workflow::Foreach;
use tarn_ports::Record;

/// A decision or a failure, and its logged reason. What was said again at once is told once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// When, in nanoseconds since the run's start.
    pub when: Time,
    /// What was done, noted, or failed.
    pub what: String,
    /// The reason, as logged.
    pub why: String,
    /// How often it was said in a row.
    pub times: u64,
    /// Of a failed attempt: the last lines of its log.
    pub log_tail: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhyError {
    /// There is no run.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Nothing has this name.
    #[error("`{query}` is no step, dataset, node, tier or transfer of this run{}", did_you_mean(.near))]
    Unknown {
        /// What was asked for.
        query: String,
        /// Names like it.
        near: Vec<String>,
    },
}

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => "; `tarn status` lists what there is".into(),
        _ => format!("; did you mean {}?", near.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// What a question is about. A name that several things have is about all of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Topic {
    run: bool,
    steps: Vec<StepId>,
    instances: Vec<InstanceId>,
    data: Vec<DataId>,
    nodes: Vec<NodeId>,
    tiers: Vec<TierId>,
    spots: Vec<Spot>,
    transfers: Vec<TransferId>,
}

/// Every logged reason about `query`: a step, `step[index]`, `step[element]`, a dataset, a node, a tier,
/// `node/tier`, a transfer (`x7`), or, when empty, the run: its outcome, what failed, and what each
/// unfinished instance was last waiting for.
///
/// # Errors
/// When nothing has this name; names like it are suggested.
pub fn why(records: &[Record], query: &str) -> Result<Vec<Answer>, WhyError> {
    let trace = Trace::of(records)?;
    let names = Names::new(&trace.start, &trace.history);
    let query = query.trim();
    let topic = topic(&trace, &names, query).ok_or_else(|| WhyError::Unknown {
        query: query.into(),
        near: nearest(query, all_names(&trace, &names).iter().map(String::as_str)),
    })?;
    let mut teller = Teller {
        trace: &trace,
        names: &names,
        topic: &topic,
        answers: Vec::new(),
        waiting: BTreeMap::new(),
    };
    for record in records {
        teller.event(record.now, &record.event);
        for action in &record.actions {
            teller.action(record.now, action);
        }
    }
    Ok(teller.finish())
}

/// The decisions that a reader of the report would ask about: what waited, was retried, made room, was given up.
pub(crate) fn notes(trace: &Trace, names: &Names<'_>, records: &[Record]) -> Vec<Answer> {
    let topic = Topic::default();
    let mut teller = Teller {
        trace,
        names,
        topic: &topic,
        answers: Vec::new(),
        waiting: BTreeMap::new(),
    };
    for record in records {
        for action in record.actions.iter().filter(|a| is_notable(a)) {
            teller.tell(record.now, teller.what(&action.what), names.reason(&action.why), None);
        }
    }
    teller.finish()
}

fn is_notable(action: &Action) -> bool {
    let what = matches!(action.what, Do::Note { .. } | Do::Abandon { .. } | Do::Unassign { .. } | Do::Stop { .. });
    let why = matches!(
        action.why,
        Reason::Retry { .. }
            | Reason::EvictForRoom { .. }
            | Reason::DemoteForRoom { .. }
            | Reason::DrainForRoom { .. }
            | Reason::OutputLost { .. }
            | Reason::Rescue
            | Reason::BeginAnew
    );
    what || why || matches!(action.what, Do::Finish { .. })
}

/// Answers as text: a column of times, what, and below it why.
pub fn render(answers: &[Answer]) -> String {
    let mut out = String::new();
    for a in answers {
        let again = if a.times > 1 { format!(" ({} times)", a.times) } else { String::new() };
        let _ = writeln!(out, "{:>9}  {}{again}", Elapsed(a.when).to_string(), a.what);
        let _ = writeln!(out, "{:>9}  because {}", "", a.why);
        for line in a.log_tail.iter().flat_map(|t| t.lines()) {
            let _ = writeln!(out, "{:>9}  | {line}", "");
        }
    }
    out
}

fn topic(trace: &Trace, names: &Names<'_>, query: &str) -> Option<Topic> {
    let workflow = &trace.start.workflow;
    let mut topic = Topic {
        run: query.is_empty(),
        ..Topic::default()
    };
    let at = |n: usize| n as u32;
    let steps = workflow.steps.iter().enumerate();
    topic.steps = steps.filter(|(_, s)| s.name == query).map(|(n, _)| StepId(at(n))).collect();
    let data = workflow.data.iter().enumerate();
    topic.data = data.filter(|(_, d)| d.name == query).map(|(n, _)| DataId(at(n))).collect();
    for (n, node) in names.cluster().nodes.iter().enumerate() {
        let id = NodeId(at(n));
        if node.name == query {
            topic.nodes.push(id);
        }
        for (t, tier) in node.tiers.iter().enumerate() {
            let tier_id = TierId(at(t));
            if tier.name == query && !topic.tiers.contains(&tier_id) {
                topic.tiers.push(tier_id);
            }
            if query.strip_prefix(&node.name).and_then(|r| r.strip_prefix('/')) == Some(&tier.name) {
                topic.spots.push(Spot { node: id, tier: tier_id });
            }
        }
    }
    topic.instances = instances(trace, names, query);
    let number = query.strip_prefix('x').and_then(|n| n.parse().ok()).map(TransferId);
    topic.transfers = number.filter(|id| trace.history.transfers.contains_key(id)).into_iter().collect();
    (topic != Topic::default()).then_some(topic)
}

/// The instance that `step[element]` or `step[index]` names: an element goes before an index.
fn instances(trace: &Trace, names: &Names<'_>, query: &str) -> Vec<InstanceId> {
    let Some((step, item)) = query.strip_suffix(']').and_then(|q| q.split_once('[')) else {
        return Vec::new();
    };
    let steps = &trace.start.workflow.steps;
    let Some(at) = steps.iter().position(|s| s.name == step) else {
        return Vec::new();
    };
    let step = StepId(at as u32);
    let mut known: Vec<InstanceId> = trace.history.instances_of(step).map(|(id, _)| id).collect();
    if let Some(Foreach::Values(values)) = &steps[at].foreach {
        known.extend((0..values.len() as u32).map(|index| InstanceId { step, index }));
    }
    let by_item = known.iter().find(|id| names.item(**id) == Some(item));
    let by_index = || known.iter().find(|id| item.parse() == Ok(id.index));
    by_item.or_else(by_index).copied().into_iter().collect()
}

fn all_names(trace: &Trace, names: &Names<'_>) -> Vec<String> {
    let workflow = &trace.start.workflow;
    let mut all: Vec<String> = workflow.steps.iter().map(|s| s.name.clone()).collect();
    all.extend(workflow.data.iter().map(|d| d.name.clone()));
    for node in &names.cluster().nodes {
        all.push(node.name.clone());
        for tier in &node.tiers {
            all.push(tier.name.clone());
            all.push(format!("{}/{}", node.name, tier.name));
        }
    }
    all.extend(trace.history.instances.keys().map(|id| names.instance(*id)));
    all
}

/// What an action or a failure touches.
#[derive(Default)]
struct Touched {
    run: bool,
    instances: Vec<InstanceId>,
    data: Vec<DataId>,
    nodes: Vec<NodeId>,
    spots: Vec<Spot>,
    transfers: Vec<TransferId>,
}

impl Touched {
    fn transfer(&mut self, t: &Transfer) {
        self.transfers.push(t.id);
        self.data.push(t.data);
        let places = t.parts.iter().map(|p| &p.from).chain([&t.to]);
        self.spots.extend(places.filter_map(|p| match p {
            Place::Node(spot) => Some(*spot),
            _ => None,
        }));
    }

    fn reason(&mut self, reason: &Reason) {
        match reason {
            Reason::EarliestEnd { node, .. } | Reason::FirstFree { node } => self.nodes.push(*node),
            Reason::WaitForCores { node, .. } | Reason::WaitForData { node, .. } => self.nodes.push(*node),
            Reason::ReadExternal { instance } | Reason::PromoteForUse { instance } => self.instances.push(*instance),
            Reason::FetchPeer { instance, from } => {
                self.instances.push(*instance);
                self.nodes.push(*from);
            }
            Reason::WaitForRoom { spot, .. }
            | Reason::EvictForRoom { spot, .. }
            | Reason::DemoteForRoom { spot, .. }
            | Reason::DrainForRoom { spot, .. } => self.spots.push(*spot),
            Reason::OutputLost { data } => self.data.push(*data),
            Reason::MovedAway { transfer } => self.transfers.push(*transfer),
            _ => {}
        }
    }

    fn concerns(&self, topic: &Topic) -> bool {
        let spots = || self.spots.iter();
        (topic.run && self.run)
            || self.instances.iter().any(|i| topic.instances.contains(i) || topic.steps.contains(&i.step))
            || self.data.iter().any(|d| topic.data.contains(d))
            || self.nodes.iter().any(|n| topic.nodes.contains(n))
            || spots().any(|s| topic.nodes.contains(&s.node) || topic.tiers.contains(&s.tier) || topic.spots.contains(s))
            || self.transfers.iter().any(|t| topic.transfers.contains(t))
    }
}

struct Teller<'a> {
    trace: &'a Trace,
    names: &'a Names<'a>,
    topic: &'a Topic,
    answers: Vec<Answer>,
    /// For a question about the run: the last note about each instance that is not done.
    waiting: BTreeMap<InstanceId, Answer>,
}

impl Teller<'_> {
    fn tell(&mut self, when: Time, what: String, why: String, log_tail: Option<String>) {
        if let Some(last) = self.answers.last_mut()
            && (&last.what, &last.why, &last.log_tail) == (&what, &why, &log_tail)
        {
            last.times += 1;
            return;
        }
        self.answers.push(Answer {
            when,
            what,
            why,
            times: 1,
            log_tail,
        });
    }

    /// Failures are reasons too, as the world gave them.
    fn event(&mut self, now: Time, event: &Event) {
        let mut touched = Touched {
            run: true,
            ..Touched::default()
        };
        let (what, failure, log_tail): (String, &Failure, _) = match event {
            Event::SourceFailed { data, failure } => {
                touched.data.push(*data);
                (format!("{} could not be listed", self.names.data(*data)), failure, None)
            }
            Event::TransferFailed { id, failure } => {
                let order = self.trace.history.transfers.get(id).map(|t| &t.order);
                order.iter().for_each(|t| touched.transfer(t));
                let data = order.map(|t| format!(" of {}", self.names.version(t.data, t.version)));
                (format!("transfer {id}{} failed", data.unwrap_or_default()), failure, None)
            }
            Event::Ended {
                instance,
                attempt,
                ended: Ended::Failed { failure, log_tail },
                ..
            } => {
                touched.instances.push(*instance);
                let what = format!("attempt {attempt} of {} failed", self.names.instance(*instance));
                (what, failure, Some(log_tail.clone()).filter(|t| !t.is_empty()))
            }
            _ => return,
        };
        if touched.concerns(self.topic) {
            self.tell(now, what, failure.message.clone(), log_tail);
        }
    }

    fn action(&mut self, now: Time, action: &Action) {
        let touched = self.touched(action);
        if touched.concerns(self.topic) {
            self.tell(now, self.what(&action.what), self.names.reason(&action.why), None);
        } else if let (true, Do::Note { about: Subject::Instance(id) }) = (self.topic.run, &action.what) {
            let instance = self.trace.history.instances.get(id);
            if instance.is_none_or(|i| !i.state.is_done()) {
                let answer = Answer {
                    when: now,
                    what: self.what(&action.what),
                    why: self.names.reason(&action.why),
                    times: 1,
                    log_tail: None,
                };
                self.waiting.insert(*id, answer);
            }
        }
    }

    fn touched(&self, action: &Action) -> Touched {
        let mut t = Touched::default();
        t.reason(&action.why);
        match &action.what {
            Do::List { data } | Do::Note { about: Subject::Data(data) } => t.data.push(*data),
            Do::Transfer(transfer) => t.transfer(transfer),
            Do::Abandon { id } => {
                let order = self.trace.history.transfers.get(id);
                order.iter().for_each(|o| t.transfer(&o.order));
            }
            Do::Assign { instance, nodes, .. } => {
                t.instances.push(*instance);
                t.spots.extend(nodes);
            }
            Do::Run(run) => {
                t.instances.push(run.instance);
                t.spots.extend(&run.nodes);
            }
            Do::Unassign { instance } | Do::Stop { instance, .. } | Do::Reuse { instance, .. } => {
                t.instances.push(*instance);
            }
            Do::Evict { part, at, .. } => {
                t.data.push(part.data);
                if let Place::Node(spot) = at {
                    t.spots.push(*spot);
                }
            }
            Do::Note { about: Subject::Instance(id) } => t.instances.push(*id),
            Do::Note { about: Subject::Tier(spot) } => t.spots.push(*spot),
            Do::Note { about: Subject::Run } | Do::Finish { .. } => t.run = true,
        }
        t
    }

    fn what(&self, what: &Do) -> String {
        let names = self.names;
        match what {
            Do::List { data } => format!("list {}", names.data(*data)),
            Do::Transfer(t) => self.movement(t),
            Do::Abandon { id } => format!("abandon transfer {id}"),
            Do::Assign { instance, nodes, .. } => {
                format!("place {} on {}", names.instance(*instance), names.nodes(nodes))
            }
            Do::Unassign { instance } => format!("take back the placement of {}", names.instance(*instance)),
            Do::Run(run) => {
                let (name, nodes) = (names.instance(run.instance), names.nodes(&run.nodes));
                format!("start {name}, attempt {}, on {nodes}", run.attempt)
            }
            Do::Stop { instance, attempt } => format!("stop {}, attempt {attempt}", names.instance(*instance)),
            Do::Reuse { instance, .. } => format!("reuse {}", names.instance(*instance)),
            Do::Evict { part, at, .. } => format!(
                "evict {} (part {}.{}) from {}",
                names.version(part.data, part.version),
                part.origin,
                part.seq,
                names.place(at)
            ),
            Do::Note { about } => format!("note on {}", self.subject(*about)),
            Do::Finish { outcome } => match outcome {
                Outcome::Done => "finish: done".into(),
                Outcome::Failed => "finish: failed".into(),
                Outcome::Interrupted(signal) => format!("finish: interrupted by signal {signal}"),
            },
        }
    }

    fn movement(&self, t: &Transfer) -> String {
        let names = self.names;
        let mut from: Vec<String> = t.parts.iter().map(|p| names.place(&p.from)).collect();
        from.dedup();
        let from = match &from[..] {
            [] => "nowhere".to_string(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        };
        let expected = self.trace.history.transfers.get(&t.id).map_or(0, |h| h.expected);
        format!(
            "{}: move {} ({}, {}) from {from} to {} ({})",
            t.id,
            names.version(t.data, t.version),
            counted(t.parts.len(), "part"),
            Bytes(expected),
            names.place(&t.to),
            kind_name(t.kind)
        )
    }

    fn subject(&self, subject: Subject) -> String {
        match subject {
            Subject::Instance(id) => self.names.instance(id),
            Subject::Data(id) => self.names.data(id),
            Subject::Tier(spot) => self.names.spot(spot),
            Subject::Run => "the run".into(),
        }
    }

    /// The last notes of what still waits come in order of time, before the end of the run.
    fn finish(mut self) -> Vec<Answer> {
        self.answers.extend(self.waiting.into_values());
        self.answers.sort_by_key(|a| a.when);
        self.answers
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
