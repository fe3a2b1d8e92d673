//! The value of checkpoints: how likely one is lost, how often to make one, what it costs in energy, and what follows from these
//! for a machine. Pure functions; their assumptions are in docs/internals/checkpoint-models.md. Times are in seconds, energies in joules.

pub mod advice;
pub mod energy;
pub mod interval;
pub mod loss;

pub use advice::{CheckpointedRun, Choice, ReplicationAdvice, ReplicationEstimate};
pub use energy::{CheckpointEnergy, Interconnect};
pub use interval::Times;
pub use loss::Exposure;
