//! L1: the traits through which the cores meet the world. Traits and the values they pass, nothing else.

pub mod external;
pub mod journal;
pub mod medium;
pub mod meter;
pub mod mover;
pub mod nodes;
pub mod objects;
pub mod one_sided;
pub mod operation;
pub mod peer;
pub mod progress;
pub mod ranks;
pub mod site;
pub mod track;
pub mod vault;
pub mod world;

pub use external::{External, ExternalFileWriter};
pub use journal::{Journal, JournalError, Record};
pub use medium::{Medium, MediumError, MediumWindow, PowerFail, Promises, ReadableMedium};
pub use meter::{Meter, MeteredActivity};
pub use mover::{
    CopyJob, CopyReport, CopySource, DeliveryJob, Follow, Mover, Over, TreeCapabilities,
};
pub use nodes::{
    CapabilityError, ChangedSince, CheckpointFinder, Followers, MakePartition, NodeWorld, Peers,
    Pieces, STEP_SOCKET, STEP_SPACE,
};
pub use objects::{ObjectBody, ObjectMetadata, ObjectStore, Replaces, Tags, Upload};
pub use one_sided::{ExposedExtent, KeepAliveGuard, OneSided};
pub use operation::{Control, MoverError, ObjectStoreError};
pub use peer::{Arrivals, PeerStream, PeerTree, Piece, Watch};
pub use progress::Progress;
pub use ranks::{Carried, RankProgress, RankService, RankServiceError, Ranks, RanksError};
pub use site::SiteWorld;
pub use track::{TrackError, WatchedMemory};
pub use vault::Vault;
pub use world::{World, WorldError};
