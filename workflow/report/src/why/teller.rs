//! Actions and failures in words, in the order of the log.

use super::LoggedReason;
use super::topic::{Topic, Touched};
use crate::names::{RunNames, kind_name};
use crate::trace::RunTrace;
use std::collections::BTreeMap;
use tarn_types::action::{Action, AttemptSpec, Do, Outcome, Subject};
use tarn_types::event::{AttemptOutcome, Event};
use tarn_types::id::InstanceId;
use tarn_types::part::{Place, Transfer};
use tarn_types::reason::Reason;
use tarn_types::units::{Bytes, Time};

pub(super) struct ReasonRenderer<'a> {
    trace: &'a RunTrace,
    names: &'a RunNames<'a>,
    topic: &'a Topic,
    answers: Vec<LoggedReason>,
    /// The failure that the last event was, if it was listed: of whose attempt, and the message.
    failure: Option<(Option<InstanceId>, String)>,
    /// For a question about the run: the last note about each instance that is not done.
    waiting: BTreeMap<InstanceId, LoggedReason>,
}

impl<'a> ReasonRenderer<'a> {
    pub(super) fn new(trace: &'a RunTrace, names: &'a RunNames<'a>, topic: &'a Topic) -> Self {
        Self {
            trace,
            names,
            topic,
            answers: Vec::new(),
            failure: None,
            waiting: BTreeMap::new(),
        }
    }

    pub(super) fn add_answer(
        &mut self,
        when: Time,
        what: String,
        why: String,
        log_tail: Option<String>,
    ) {
        if let Some(last) = self.answers.last_mut()
            && (&last.what, &last.why, &last.log_tail) == (&what, &why, &log_tail)
        {
            last.times += 1;
            return;
        }
        self.answers.push(LoggedReason {
            when,
            what,
            why,
            times: 1,
            log_tail,
        });
    }

    /// Failures are reasons too, as the world gave them.
    pub(super) fn event(&mut self, now: Time, event: &Event) {
        let mut touched = Touched {
            run: true,
            ..Touched::default()
        };
        self.failure = None;
        let mut of = None;
        let is_failure = matches!(event, Event::Ended { .. } | Event::TransferFailed { .. });
        let back;
        let (what, why, log_tail): (String, &str, _) = match event {
            Event::SourceFailed { data, failure } => {
                touched.data.push(*data);
                (
                    format!("{} could not be listed", self.names.data(*data)),
                    &failure.message,
                    None,
                )
            }
            Event::TransferFailed { id, failure, .. } => {
                let order = self.trace.history.transfers.get(id).map(|t| &t.order);
                order.iter().for_each(|t| touched.transfer(t));
                let data = order.map(|t| format!(" of {}", self.names.version(t.data, t.version)));
                (
                    format!("transfer {id}{} failed", data.unwrap_or_default()),
                    &failure.message,
                    None,
                )
            }
            Event::Ended {
                instance,
                attempt,
                ended:
                    AttemptOutcome::Failed {
                        failure, log_tail, ..
                    },
                ..
            } => {
                touched.instances.push(*instance);
                of = Some(*instance);
                let what = format!(
                    "attempt {attempt} of {} failed",
                    self.names.instance(*instance)
                );
                (
                    what,
                    &failure.message,
                    Some(log_tail.clone()).filter(|t| !t.is_empty()),
                )
            }
            Event::NodeLost { node, why } => {
                touched.nodes.push(*node);
                (format!("{} is lost", self.names.node(*node)), why, None)
            }
            Event::NodeBack { node, whole, .. } => {
                touched.nodes.push(*node);
                let what = format!("{} is back", self.names.node(*node));
                back = format!(
                    "it answers again; complete there: {}",
                    counted(whole.len(), "replica")
                );
                (what, &back, None)
            }
            _ => return,
        };
        if touched.concerns(self.topic) {
            self.failure = is_failure.then(|| (of, why.to_owned()));
            self.add_answer(now, what, why.to_owned(), log_tail);
        }
    }

    pub(super) fn action(&mut self, now: Time, action: &Action) {
        let touched = self.touched(action);
        if touched.concerns(self.topic) {
            let (what, why) = (self.what(&action.what), self.reason(action));
            let ends = matches!(action.what, Do::Finish { .. });
            if let Some(last) = self.answers.last_mut().filter(|a| ends && a.when == now)
                && last.why == why
            {
                // The same was noted of the run just before.
                last.what = what;
                return;
            }
            self.add_answer(now, what, why, None);
        } else if let (
            true,
            Do::Note {
                about: Subject::Instance(id),
            },
        ) = (self.topic.run, &action.what)
        {
            let of = self.failure.as_ref().and_then(|(of, _)| *of);
            if of == Some(*id) && self.repeats_failure(action) {
                // Its attempt's failure is listed already.
                self.waiting.remove(id);
                return;
            }
            let instance = self.trace.history.instances.get(id);
            if instance.is_none_or(|i| !i.state.is_done()) {
                let answer = LoggedReason {
                    when: now,
                    what: self.what(&action.what),
                    why: self.reason(action),
                    times: 1,
                    log_tail: None,
                };
                self.waiting.insert(*id, answer);
            }
        }
    }

    /// Whether an action's reason is the failure that was listed just before.
    fn repeats_failure(&self, action: &Action) -> bool {
        matches!(&action.why, Reason::Failed { message } | Reason::GaveUp { message }
            if self.failure.as_ref().is_some_and(|(_, known)| message.contains(known)))
    }

    fn reason(&self, action: &Action) -> String {
        match &action.why {
            Reason::GaveUp { .. } if self.repeats_failure(action) => {
                "it has failed for good; steps that do not need it continue".into()
            }
            Reason::Failed { .. } if self.repeats_failure(action) => {
                "it has failed for good; nothing new is started".into()
            }
            why => self.names.reason(why),
        }
    }

    fn touched(&self, action: &Action) -> Touched {
        let mut t = Touched::default();
        t.reason(&action.why);
        t.run |= matches!(
            action.why,
            Reason::NotRescued { .. } | Reason::RescuedInPart { .. }
        );
        match &action.what {
            Do::List { data }
            | Do::Note {
                about: Subject::Data(data),
            } => t.data.push(*data),
            Do::Transfer(transfer) => t.transfer(transfer),
            Do::Abandon { id } => {
                let order = self.trace.history.transfers.get(id);
                order.iter().for_each(|o| t.transfer(&o.order));
            }
            Do::Assign {
                instance, nodes, ..
            } => {
                t.instances.push(*instance);
                t.tier_refs.extend(nodes);
            }
            Do::Run(run) => {
                t.instances.push(run.instance);
                t.tier_refs.extend(&run.nodes);
            }
            Do::Unassign { instance }
            | Do::Stop { instance, .. }
            | Do::Forget { instance, .. }
            | Do::Reuse { instance, .. } => {
                t.instances.push(*instance);
            }
            Do::CopyImage {
                instance, from, to, ..
            } => {
                t.instances.push(*instance);
                t.tier_refs.extend([from, to]);
            }
            Do::Discard { at, .. } => t.tier_refs.extend(at),
            Do::Evict { part, at, .. } => {
                t.data.push(part.data);
                if let Place::Node(tier_ref) = at {
                    t.tier_refs.push(*tier_ref);
                }
            }
            Do::Cache { part, at, .. } => {
                t.data.push(part.data);
                t.tier_refs.push(*at);
            }
            Do::Note {
                about: Subject::Instance(id),
            } => t.instances.push(*id),
            Do::Note {
                about: Subject::Step(step),
            } => t.steps.push(*step),
            Do::Note {
                about: Subject::Tier(tier_ref),
            } => t.tier_refs.push(*tier_ref),
            Do::Note {
                about: Subject::Run,
            }
            | Do::Finish { .. } => t.run = true,
        }
        t
    }

    pub(super) fn what(&self, what: &Do) -> String {
        let names = self.names;
        match what {
            Do::List { data } => format!("list {}", names.data(*data)),
            Do::Transfer(t) => self.movement(t),
            Do::Abandon { id } => format!("abandon transfer {id}"),
            Do::Assign {
                instance, nodes, ..
            } => {
                format!(
                    "place {} on {}",
                    names.instance(*instance),
                    names.nodes(nodes)
                )
            }
            Do::Unassign { instance } => {
                format!("take back the placement of {}", names.instance(*instance))
            }
            Do::Run(run) => self.start(run),
            Do::Stop { instance, attempt } => {
                format!("stop {}, attempt {attempt}", names.instance(*instance))
            }
            Do::CopyImage {
                instance,
                image,
                to,
                ..
            } => format!(
                "copy image {image} of {} to {}",
                names.instance(*instance),
                names.nodes(&[*to])
            ),
            Do::Forget { instance, .. } => {
                format!("remove the checkpoints of {}", names.instance(*instance))
            }
            Do::Discard { partition, at, .. } => format!(
                "remove partition {} from {}",
                names.partition(*partition),
                names.nodes(at)
            ),
            Do::Reuse { instance, .. } => format!("reuse {}", names.instance(*instance)),
            Do::Evict { part, at, .. } => format!(
                "evict {} (part {}.{}) from {}",
                names.version(part.data, part.version),
                part.origin,
                part.seq,
                names.place(at)
            ),
            Do::Cache { part, at, .. } => format!(
                "keep {} (part {}.{}) as cache on {}",
                names.version(part.data, part.version),
                part.origin,
                part.seq,
                names.place(&Place::Node(*at))
            ),
            Do::Note { about } => self.subject(*about),
            Do::Finish { outcome } => match outcome {
                Outcome::Done => "finish: done".into(),
                Outcome::Failed => "finish: failed".into(),
                Outcome::Refused => "finish: refused".into(),
                Outcome::Interrupted(signal) => format!("finish: interrupted by signal {signal}"),
            },
        }
    }

    fn start(&self, run: &AttemptSpec) -> String {
        let (name, nodes) = (
            self.names.instance(run.instance),
            self.names.nodes(&run.nodes),
        );
        let partitions = match &self.names.partition_texts(&run.partitions)[..] {
            [] => String::new(),
            all => format!(", with {}", all.join("; ")),
        };
        format!(
            "start {name}, attempt {}, on {nodes}{partitions}",
            run.attempt
        )
    }

    fn movement(&self, t: &Transfer) -> String {
        let names = self.names;
        let mut from: Vec<String> = t.parts.iter().map(|p| names.place(&p.from)).collect();
        from.dedup();
        let from = if from.is_empty() {
            "nowhere".to_string()
        } else {
            tarn_types::text::first_of(&from, 1)
        };
        let expected = self
            .trace
            .history
            .transfers
            .get(&t.id)
            .map_or(0, |h| h.expected);
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
            Subject::Step(id) => self.names.step(id),
            Subject::Data(id) => self.names.data(id),
            Subject::Tier(tier_ref) => self.names.tier_ref(tier_ref),
            Subject::Run => "the run".into(),
        }
    }

    /// The last notes of what still waits come in order of time, before the end of the run.
    pub(super) fn finish(mut self) -> Vec<LoggedReason> {
        self.answers.extend(self.waiting.into_values());
        self.answers.sort_by_key(|a| a.when);
        self.answers
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
