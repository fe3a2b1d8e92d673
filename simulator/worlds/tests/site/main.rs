//! The simulated site by itself: what it tells, how long things take, what it measures, and which rules it holds a planner
//! to.

mod common;
mod rules;
mod world;
