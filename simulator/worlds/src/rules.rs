//! Holds the engine of a run to every rule, by its own account of the log: it takes nothing from the engine or the world,
//! and watches the world too.

mod account;
mod actions;
mod cache;
mod events;
mod needs;
mod partitions;

use account::RunAccount;
use tarn_ports::Record;
use tarn_types::event::Event;
use tarn_types::units::{Elapsed, Time};

/// The rules of a run, and the account of its log so far.
#[derive(Debug, Default)]
pub struct Rules {
    account: Option<RunAccount>,
    now: Time,
}

/// A record of a log that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}` was broken in record {seq} at {}: {how}", Elapsed(*.at))]
pub struct BrokenRule {
    /// The rule's name.
    pub rule: &'static str,
    /// The record's number.
    pub seq: u64,
    /// When it was written.
    pub at: Time,
    /// The violation.
    pub how: String,
}

/// A rule that was broken, and how.
type RuleViolation = (&'static str, String);

/// An error that names a rule, unless it is kept.
fn rule(name: &'static str, kept: bool, how: impl FnOnce() -> String) -> Result<(), RuleViolation> {
    match kept {
        true => Ok(()),
        false => Err((name, how())),
    }
}

impl Rules {
    /// Rules of a run that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// When it breaks a rule: which, when and how.
    pub fn check(&mut self, record: &Record) -> Result<(), BrokenRule> {
        let report = |(rule, how): RuleViolation| BrokenRule {
            rule,
            seq: record.seq,
            at: record.now,
            how,
        };
        if record.now < self.now {
            let how = format!("{} comes after {}", record.now, self.now);
            return Err(report(("time goes on", how)));
        }
        self.now = record.now;
        if let Event::Started(start) = &record.event {
            self.account = Some(RunAccount::new(start));
        }
        let Some(account) = &mut self.account else {
            let how = format!("{:?}", record.event);
            return Err(report(("a run begins with its start", how)));
        };
        account.happened(&record.event).map_err(report)?;
        for action in &record.actions {
            let decided = account.decided(action);
            decided.map_err(|(rule, how)| report((rule, format!("{how}\n    by {action:?}"))))?;
        }
        Ok(())
    }
}
