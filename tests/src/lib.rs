//! Rules about the sources, as functions that say what breaks them: the [`layers`], the [`style`]. The tests
//! beside this crate apply them to the repository and to examples that break them.
//!
//! And [`slurm`]: a real Slurm of several nodes, for the tests that need one; [`desk`]: a user at work there.

pub mod desk;
pub mod layers;
pub mod programs;
pub mod slurm;
pub mod style;
pub mod tree;
