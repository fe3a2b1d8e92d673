//! L1: the traits through which the cores meet the world. Traits and the values they pass, nothing else.

pub mod external;
pub mod journal;
pub mod medium;
pub mod meter;
pub mod mover;
pub mod nodes;
pub mod objects;
pub mod one_sided;
pub mod peer;
pub mod progress;
pub mod ranks;
pub mod site;
pub mod track;
pub mod vault;
pub mod world;

pub use external::{Draft, External};
pub use journal::{Journal, JournalError, Record};
pub use medium::{Medium, MediumError, PowerFail, Promises, Stored, Window};
pub use meter::{Meter, Metered};
pub use mover::{
    Control, CopyJob, CopyReport, CopySource, Delivery, Follow, Mover, MoverError, Over, Refused,
    TreeCapabilities,
};
pub use nodes::{
    ChangedSince, Checkpoints, Followers, MakePartition, Nodes, Peers, Pieces, STEP_SOCKET,
    STEP_SPACE,
};
pub use objects::{Found, ObjectBody, ObjectStore, Replaces, Tags, Upload};
pub use one_sided::{Hold, OneSided, Open};
pub use peer::{Arrivals, PeerStream, PeerTree, Piece, Watch};
pub use progress::Progress;
pub use ranks::{Carried, Host, Ranks, RanksError, Reached};
pub use site::SiteWorld;
pub use track::{TrackError, Watched};
pub use vault::Vault;
pub use world::{World, WorldError};
