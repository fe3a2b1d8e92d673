//! Holds a planner to every rule of a site, by its own account of actions and events: it takes nothing else from the world, so
//! it watches the world too.

mod actions;
mod data;
mod events;
mod host;
mod promise;
mod state;

use state::SiteAccount;
use tarn_ports::{SiteWorld, WorldError};
use tarn_types::site::promise::PromiseJudge;
use tarn_types::site::{Machine, SiteAction, SiteEvent};
use tarn_types::units::{Elapsed, Nanos, Time};

/// A world in which breaking a rule is an error that names the rule, the violation and the time.
#[derive(Debug)]
pub struct Checked<W> {
    world: W,
    account: SiteAccount,
    /// The promise is given to the next job once the planner has taken its wishes back.
    promise_due: bool,
}

/// A rule that was broken, and how.
type SiteRuleViolation = (&'static str, String);

impl<W> Checked<W> {
    /// A world that begins with an empty, idle machine.
    pub fn new(machine: &Machine, world: W) -> Self {
        Self {
            world,
            account: SiteAccount::new(machine),
            promise_due: false,
        }
    }

    /// Workflows may not delay an ordinary job by more than this against its promise.
    #[must_use]
    pub fn promising(mut self, bound: Nanos) -> Self {
        self.account.judge = Some(PromiseJudge::new(bound));
        self
    }

    /// The world itself.
    pub fn into_inner(self) -> W {
        self.world
    }

    /// The promise after an event. Where the host began a job, wishes of the planner may have to leave its nodes; their
    /// jobs wait all the time, as the host never began them. So who is the first that waits is known when they have left:
    /// before the planner allocates nodes again, or when it has done with the event.
    fn promise_after(&mut self, event: &SiteEvent) -> Result<(), SiteRuleViolation> {
        self.promise_due = matches!(event, SiteEvent::Began { .. }) && !self.account.has_promise();
        match self.promise_due {
            true => Ok(()),
            false => self.account.promise(),
        }
    }

    fn promise_if_due(&mut self) -> Result<(), SiteRuleViolation> {
        match std::mem::take(&mut self.promise_due) {
            true => self.account.promise(),
            false => Ok(()),
        }
    }
}

fn report(now: Time, (rule, how): SiteRuleViolation) -> WorldError {
    WorldError(format!(
        "rule `{rule}` was broken at {} ({now} ns): {how}",
        Elapsed(now)
    ))
}

impl<W: SiteWorld> SiteWorld for Checked<W> {
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError> {
        if matches!(action, SiteAction::Allocate { .. }) {
            self.promise_if_due().map_err(|b| report(now, b))?;
        }
        self.account.check(action).map_err(|b| report(now, b))?;
        self.world.perform(now, action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        let now = self.account.now;
        self.promise_if_due().map_err(|b| report(now, b))?;
        let Some((time, event)) = self.world.next(until)? else {
            self.account.end().map_err(|b| report(now, b))?;
            return Ok(None);
        };
        if time < now {
            let how = format!("{event:?} comes at {time} ns, before what came last");
            return Err(report(now, ("time goes on", how)));
        }
        self.account.now = time;
        self.account.happened(&event).map_err(|b| report(time, b))?;
        self.promise_after(&event).map_err(|b| report(time, b))?;
        Ok(Some((time, event)))
    }
}
