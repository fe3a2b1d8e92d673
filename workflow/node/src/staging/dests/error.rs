//! The reasons why a destination cannot be written, as sentences for people.

use std::io;
use std::path::PathBuf;

/// Why tarn may not, or cannot, write a destination.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// It is a link, and what it leads to is no folder.
    #[error(
        "the destination {} is a link to {}, which is no folder; let it point to a folder or remove it",
        dest.display(), real.display()
    )]
    LinkToNoFolder {
        /// The destination.
        dest: PathBuf,
        /// The folder to which the link leads.
        real: PathBuf,
    },
    /// It is a link to nothing.
    #[error(
        "the destination {} is a link that leads nowhere: {source}; let it point to a folder or remove it",
        dest.display()
    )]
    BrokenLink {
        /// The destination.
        dest: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It holds something of somebody else's.
    #[error(
        "{what} holds files that tarn did not put there or that were changed since ({why}); move them away or choose another `dest`"
    )]
    HoldsForeign {
        /// Which destination.
        what: String,
        /// Its foreign content.
        why: ForeignContentError,
    },
    /// An object store does not take it.
    #[error("the destination {} of dataset `{dataset}` cannot be used: {why}", dest.display())]
    Unusable {
        /// The destination.
        dest: PathBuf,
        /// Its dataset.
        dataset: String,
        /// The store's reason.
        why: String,
    },
    /// Nothing can be exchanged with it.
    #[error(
        "the destination {} of dataset `{dataset}` cannot be replaced as a whole: {why}; name a folder below it, or \
         another one, as `dest`",
        dest.display()
    )]
    NotReplaceable {
        /// The destination.
        dest: PathBuf,
        /// Its dataset.
        dataset: String,
        /// The reason.
        why: String,
    },
}

/// The content of a destination that may not be replaced.
#[derive(Debug, thiserror::Error)]
pub enum ForeignContentError {
    /// Something that is no folder.
    #[error("it is no folder")]
    NoFolder,
    /// Its content is not known.
    #[error("{0}")]
    NotListed(String),
    /// A path that tarn did not write, or that was changed since.
    #[error("{0}")]
    Path(String),
}
