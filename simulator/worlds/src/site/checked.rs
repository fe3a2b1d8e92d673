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
}

/// A rule that was broken, and how.
type SiteRuleViolation = (&'static str, String);

impl<W> Checked<W> {
    /// A world that begins with an empty, idle machine.
    pub fn new(machine: &Machine, world: W) -> Self {
        Self {
            world,
            account: SiteAccount::new(machine),
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
}

fn report(now: Time, (rule, how): SiteRuleViolation) -> WorldError {
    WorldError(format!(
        "rule `{rule}` was broken at {} ({now} ns): {how}",
        Elapsed(now)
    ))
}

impl<W: SiteWorld> SiteWorld for Checked<W> {
    fn perform(&mut self, now: Time, action: &SiteAction) -> Result<(), WorldError> {
        self.account.check(action).map_err(|b| report(now, b))?;
        self.world.perform(now, action)
    }

    fn next(&mut self, until: Option<Time>) -> Result<Option<(Time, SiteEvent)>, WorldError> {
        let now = self.account.now;
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
        self.account.promise().map_err(|b| report(time, b))?;
        Ok(Some((time, event)))
    }
}
