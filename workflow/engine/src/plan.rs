//! The planner of a site: which job gets which nodes when, and how its data moves. Sans-I/O like the engine of a run:
//! [`Planner::step`] takes the time and an event and returns actions. The host of a simulated cluster carries them out; one
//! that decides by itself, such as Slurm, takes them as wishes and reports what it did.
//!
//! Reading order: the accounts, each with its own state: `nodes` (capacity), `items` (where data is stored), `outbox`
//! (moves), `reservations` (the rights of waiting jobs), `queue` and `timeline` (fast indexes); `state` (all of them,
//! with the jobs). Above them the estimates: `routes` (the sources of inputs) and `forecast` (when nodes come free).
//! Then the choices: `view` and `policy`, `site` (the view of a site), `promise` (the begin on which ordinary jobs
//! rely). Then the life of a job: `life`, `leave` and `scripts`; its needs: `submit`, `space`, `moves` and `ahead`;
//! `modes` (memory modes and sleep); `happen` (everything else that happens). Facts of a host that decides by itself:
//! `host` (jobs that it began, or did not), `withdrawn`, `closed` (nodes), `found` (data). `recount`: the accounts counted
//! again; `facts`: what a host may ask.

mod admit;
mod ahead;
mod beside;
mod closed;
mod energy;
mod facts;
mod fits;
mod forecast;
mod found;
mod happen;
mod host;
mod items;
mod later;
mod leave;
mod leeway;
mod life;
mod masked;
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
mod withdrawn;

pub use facts::DataWait;
use policy::SchedulingPolicy;
use state::PlannerState;
use tarn_ports::{SiteWorld, WorldError};
use tarn_types::id::NodeId;
use tarn_types::ledger::NodeAvailability;
use tarn_types::policy::Policy;
use tarn_types::site::{Machine, Mode, NodePowerModel, SiteAction, SiteEvent, SiteEventError};
use tarn_types::units::Time;

/// The last moment that the planner knows: sums of times stay numbers.
const LAST: Time = Time::MAX >> 1;

/// Whether a node is awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakefulness {
    /// It is up, or is booting into another memory mode.
    Awake,
    /// It sleeps.
    Asleep,
    /// It was told to wake up.
    Waking,
}

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
    ///
    /// # Errors
    /// When the event contradicts what the planner knows of its host. It changed nothing.
    pub fn step(
        &mut self,
        now: Time,
        event: &SiteEvent,
        actions: &mut Vec<SiteAction>,
    ) -> Result<(), SiteEventError> {
        let mut refused = self.step_all(now, std::slice::from_ref(event), actions);
        refused.pop().map_or(Ok(()), |(_, why)| Err(why))
    }

    /// Applies events that are known at once, such as the difference between two states of the host, and decides once.
    /// Appends the actions that follow. Returns the positions of the events that were refused, and why.
    pub fn step_all(
        &mut self,
        now: Time,
        events: &[SiteEvent],
        actions: &mut Vec<SiteAction>,
    ) -> Vec<(usize, SiteEventError)> {
        self.state.now = self.state.now.max(now.min(LAST));
        self.state.deadline = None;
        let applied = events.iter().map(|event| self.state.apply(event));
        let refused = applied
            .enumerate()
            .filter_map(|(at, r)| Some((at, r.err()?)));
        let refused = refused.collect();
        self.decide(actions);
        refused
    }

    fn decide(&mut self, actions: &mut Vec<SiteAction>) {
        self.state.begin_later();
        self.state.expire_plans();
        self.state.claims.begin_round();
        self.state.keep_promise();
        self.rule.decide(&mut self.state);
        // The next job in turn relies on the state as it is now.
        self.state.promised();
        self.state.housekeeping();
        self.state.expire_plans();
        self.state.remind_of_later();
        actions.append(&mut self.state.actions);
        if cfg!(debug_assertions) {
            self.state.check_accounts();
        }
    }

    /// When the planner needs a step even if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        self.state.deadline
    }

    /// Whether a node is awake, as the planner has it; `None` of one that is lost or that the machine does not have.
    pub fn wakefulness(&self, node: NodeId) -> Option<Wakefulness> {
        match self.state.nodes.all.get(node)?.availability() {
            NodeAvailability::Up | NodeAvailability::Booting(_) => Some(Wakefulness::Awake),
            NodeAvailability::Asleep => Some(Wakefulness::Asleep),
            NodeAvailability::Waking => Some(Wakefulness::Waking),
            NodeAvailability::Away | NodeAvailability::Lost => None,
        }
    }

    /// The memory mode of a node, as the planner has it; `None` of one that the machine does not have. One that changes has
    /// its old one.
    pub fn mode_of(&self, node: NodeId) -> Option<Mode> {
        self.state.nodes.all.get(node).map(|node| node.mode)
    }

    /// The power that the nodes of an island draw from now on, by new measurements. Nothing where there is no such island.
    pub fn set_power_model(&mut self, island: usize, power: NodePowerModel) {
        if let Some(island) = self.state.nodes.islands.get_mut(island) {
            island.kind.power = power;
        }
    }

    /// Jobs that wait for nodes.
    pub fn waiting(&self) -> usize {
        self.state.queue.len()
    }
}

/// Runs a site until nothing happens any more. `watch` sees every event with the actions that it led to.
///
/// # Errors
/// When the world refuses an action, or the planner an event.
pub fn drive_site(
    planner: &mut Planner,
    world: &mut dyn SiteWorld,
    watch: &mut dyn FnMut(Time, &SiteEvent, &[SiteAction]),
) -> Result<(), WorldError> {
    let mut actions = Vec::new();
    while let Some((now, event)) = world.next(planner.deadline())? {
        actions.clear();
        planner
            .step(now, &event, &mut actions)
            .map_err(|why| WorldError(format!("{event:?} was refused: {why}")))?;
        watch(now, &event, &actions);
        for action in &actions {
            world.perform(now, action)?;
        }
    }
    Ok(())
}
