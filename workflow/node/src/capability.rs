//! Why this machine cannot do something: the ports' error, as a world reports it to its run.

pub use tarn_ports::CapabilityError;
