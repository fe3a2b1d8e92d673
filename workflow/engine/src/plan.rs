//! The planner of a simulated site (real ones: services/site): which job gets which nodes when, and how its data moves.
//! Sans-I/O like the engine of a run: [`Planner::step`] takes the time and an event and returns actions.
//!
//! Reading order: the accounts, each with its own state: `nodes` (capacity), `items` (where data is stored), `outbox`
//! (moves), `reservations` (the rights of waiting jobs), `queue` and `timeline` (fast indexes); `state` (all of them,
//! with the jobs). Above them the estimates: `routes` (the sources of inputs) and `forecast` (when nodes come free).
//! Then the choices: `view` and `policy`, `site` (the view of a site), `promise` (the begin on which ordinary jobs
//! rely). Then the life of a job: `life`, `leave` and `scripts`; its needs: `submit`, `space`, `moves` and `ahead`;
//! `modes` (memory modes and sleep); `happen` (everything else that happens); `recount` (the accounts counted again).

mod ahead;
mod energy;
mod forecast;
mod happen;
mod items;
mod leave;
mod leeway;
mod life;
mod modes;
mod moves;
mod nodes;
mod nodeset;
mod outbox;
pub(crate) mod policy;
mod promise;
pub(crate) mod queue;
mod rates;
mod recount;
mod reservations;
mod routes;
mod scripts;
mod site;
mod space;
mod spare;
mod state;
mod submit;
mod timeline;
pub(crate) mod view;

use policy::SchedulingPolicy;
use state::PlannerState;
use tarn_ports::{SiteWorld, WorldError};
use tarn_types::policy::Policy;
use tarn_types::site::{Machine, SiteAction, SiteEvent};
use tarn_types::units::Time;

/// The planner of a site.
pub struct Planner {
    state: PlannerState,
    rule: Box<dyn SchedulingPolicy<PlannerState> + Send>,
}

impl Planner {
    /// A planner for an empty machine.
    pub fn new(machine: &Machine, policy: Policy) -> Self {
        Self {
            state: PlannerState::new(machine, policy),
            rule: policy::rule(&policy),
        }
    }

    /// Applies an event and appends the actions that follow from it.
    pub fn step(&mut self, now: Time, event: &SiteEvent, actions: &mut Vec<SiteAction>) {
        self.state.now = self.state.now.max(now);
        self.state.deadline = None;
        self.state.apply(event);
        self.state.expire_plans();
        self.state.claims.begin_round();
        self.state.keep_promise();
        self.rule.decide(&mut self.state);
        // The next job in turn relies on the state as it is now.
        self.state.promised();
        self.state.housekeeping();
        self.state.expire_plans();
        actions.append(&mut self.state.actions);
        if cfg!(debug_assertions) {
            self.state.check_accounts();
        }
    }

    /// When the planner needs a step even if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        self.state.deadline
    }

    /// Jobs that wait for nodes.
    pub fn waiting(&self) -> usize {
        self.state.queue.len()
    }
}

/// Runs a site until nothing happens any more. `watch` sees every event with the actions that it led to.
///
/// # Errors
/// When the world refuses an action.
pub fn drive_site(
    planner: &mut Planner,
    world: &mut dyn SiteWorld,
    watch: &mut dyn FnMut(Time, &SiteEvent, &[SiteAction]),
) -> Result<(), WorldError> {
    let mut actions = Vec::new();
    while let Some((now, event)) = world.next(planner.deadline())? {
        actions.clear();
        planner.step(now, &event, &mut actions);
        watch(now, &event, &actions);
        for action in &actions {
            world.perform(now, action)?;
        }
    }
    Ok(())
}
