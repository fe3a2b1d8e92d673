//! L3: a world in virtual time, for plans and for tests of the engine.
//!
//! Transfers share links max-min fairly ([`Network`]), steps take the time that [`Estimates`] gives them, and
//! events come in an order that depends on nothing but the input and the seed. An order that no correct engine gives
//! (more cores than a node has, reading a replica that is not there, evicting one that is being read) is a
//! [`tarn_ports::WorldError`] that names it.

mod estimates;
mod faults;
mod instances;
mod model;
mod network;
mod nodes;
mod recount;
mod rules;
mod simulation;
pub mod site;
mod store;
mod transfers;
mod world;

pub use estimates::{Contents, Estimates, RunTime, SimEntry, even_entries};
pub use faults::FaultPlan;
pub use model::{Keeps, Outage};
pub use network::{FlowRates, Leg, Network, Resource, StreamLimit};
pub use rules::{BrokenRule, Rules};
pub use simulation::Simulation;
