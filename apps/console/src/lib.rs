//! L4: the parts that the programs for the command line, `tarn` and `tarn-bench`, share: how they print, with which exit codes they
//! end, where their plug-ins are, and how they read the input of simulations.

pub mod error;
pub mod hdf5;
pub mod nbdkit;
pub mod plugin;
pub mod print;
pub mod programs;
pub mod simulated;
pub mod usage_error;
pub mod whole;
