//! Rules about the sources, as functions that return the violations: the [`layers`], the [`style`]. The tests
//! beside this crate apply them to the repository and to examples that break them.
//!
//! And [`slurm`]: a real Slurm of several nodes, for the tests that need one; [`fixture`]: a user at work there; [`objects`]: an object store that
//! its nodes reach; [`pages`]: the blocks of code that the documents show.

pub mod fixture;
pub mod layers;
pub mod objects;
pub mod pages;
pub mod programs;
pub mod slurm;
pub mod style;
pub mod tree;
