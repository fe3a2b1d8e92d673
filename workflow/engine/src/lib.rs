//! L2: ledger, planner and data scheduler as a sans-I/O core, and the loop that drives it.
//!
//! [`Engine::step`] is the whole interface: it takes the time and an event and returns the actions and their reasons.
//! Inside there are only two ways: *apply* changes the [`state::EngineState`] by an event or an action, with no choice
//! in it; *decide* chooses actions and applies them. Beside that it only records its checks (sizes checked, parts and
//! instances examined, when to look again), and looking twice does no harm. So a recorded log (events and actions)
//! rebuilds the state without deciding anything again.
//!
//! Reading order: [`state`] (the state of a run), [`apply`] (its changes), `data`, `steps` and `ledger` (its three
//! tables), `capacity` (of a node), `lost` (lost nodes), `decide` (the choices, one file each), [`drive`](mod@drive)
//! (the loop).

pub mod advice;
mod apply;
pub mod bound;
mod cache;
mod data;
mod dataflow;
mod decide;
mod drive;
mod entries;
mod estimate;
mod failed;
mod given_up;
mod identity;
mod kept;
mod ledger;
mod links;
mod lost;
mod partitions;
pub mod plan;
mod publish;
mod rank;
mod returned;
mod sources;
mod state;
mod steps;
mod unbound;

pub use drive::{DriveError, drive, replay};

use std::collections::BTreeSet;
use tarn_types::action::{Action, Outcome};
use tarn_types::event::Event;
use tarn_types::id::{DataId, InstanceId};
use tarn_types::part::{PartRef, Place, StoreKey};
use tarn_types::units::Time;

/// Version of the decisions: recorded with each of them. Raised when the same events give other actions.
pub const ENGINE_VERSION: u32 = 13;

/// Planner and data scheduler of one run.
#[derive(Debug, Default)]
pub struct Engine {
    state: Option<Box<state::EngineState>>,
}

impl Engine {
    /// An engine that waits for [`Event::Started`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an event and appends the actions that follow from it.
    pub fn step(&mut self, now: Time, event: &Event, actions: &mut Vec<Action>) {
        self.apply_event(now, event);
        if let Some(state) = &mut self.state {
            decide::decide(state, actions);
            if cfg!(debug_assertions) {
                state.check_ledger();
            }
        }
    }

    /// Takes in a recorded event with the actions that were decided then; decides nothing.
    pub fn replay(&mut self, now: Time, event: &Event, actions: &[Action]) {
        self.apply_event(now, event);
        if let Some(state) = &mut self.state {
            state.note_all_listed();
            for action in actions {
                state.apply_action(action);
            }
            state.note_all_listed();
            state.given_up.unreachable.clear();
        }
    }

    /// The instances that are done and would run again if the run were resumed with these replicas: their output is
    /// needed and not there. Nothing is decided by that.
    pub fn runs_again(
        mut self,
        now: Time,
        found: Vec<(PartRef, Place)>,
        pinned: &[DataId],
    ) -> BTreeSet<InstanceId> {
        let resumed = Event::Resumed {
            found,
            pinned: pinned.to_vec(),
            set_aside: None,
        };
        self.apply_event(now, &resumed);
        self.state
            .map_or_else(BTreeSet::new, |mut s| s.runs_again())
    }

    fn apply_event(&mut self, now: Time, event: &Event) {
        match (event, &mut self.state) {
            (Event::Started(start), slot) => {
                *slot = Some(Box::new(state::EngineState::new(now, start)))
            }
            (event, Some(state)) => state.apply_event(now, event),
            (_, None) => {}
        }
    }

    /// When the engine needs a step even if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        self.state.as_ref()?.deadline
    }

    /// How the run ended, once it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.state.as_ref()?.finished
    }

    /// The replicas on nodes and in the external store that exist according to the log; sources are not listed.
    pub fn replicas(&self) -> Vec<(PartRef, StoreKey, Place)> {
        self.state
            .as_ref()
            .map_or_else(Vec::new, |s| s.data.replicas())
    }
}
