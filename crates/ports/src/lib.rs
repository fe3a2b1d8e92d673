//! L1: the traits through which the cores meet the world. Traits and the values they pass, nothing else.

pub mod journal;
pub mod mover;
pub mod peer;
pub mod site;
pub mod world;

pub use journal::{Journal, JournalError, Record};
pub use mover::{Control, CopyJob, CopyReport, CopySource, Mover, MoverError, TreeCapabilities};
pub use peer::{Arrivals, PeerStream, PeerTree, Piece, Watch};
pub use site::SiteWorld;
pub use world::{World, WorldError};
