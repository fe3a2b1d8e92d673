//! The simulated site by itself: its events, how long things take, its measurements, and the rules to which it holds a
//! planner.

mod common;
mod rules;
mod world;
