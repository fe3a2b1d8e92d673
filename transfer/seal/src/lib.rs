//! L1: sealed files and wrapped keys. docs/admin/security.md has the attackers, docs/reference/formats.md the bytes.
//!
//! [`mod@file`] divides a file into pieces that are sealed each for itself, so that it is written by many threads, read from anywhere
//! and resumed; [`piece`] seals memory; [`wrap`] keeps the keys of data under another key; [`ring`](mod@ring) is the user's own
//! file of those. Nothing here reads a clock, a file or a source of random numbers: salts, nonces and keys are arguments.

pub mod file;
pub mod piece;
pub mod ring;
pub mod wrap;

/// The cipher, as reports and tables name it.
pub const CIPHER: &str = "AES-256-GCM";

/// The number of that cipher in headers.
const AES_256_GCM: u8 = 1;

/// Why something sealed cannot be used. It never contains a key or data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It does not begin as a sealed file or a wrapped key does.
    #[error("it is not sealed by tarn: its first bytes are others")]
    Unknown,
    /// A format that this version does not know.
    #[error(
        "it is sealed in format {0}, which this version of tarn does not know; use the version that made it, or a newer one"
    )]
    Version(u8),
    /// A cipher that this version does not know.
    #[error(
        "it is sealed by cipher {0}, which this version of tarn does not know; use the version that made it, or a newer one"
    )]
    Cipher(u8),
    /// A header that contradicts itself.
    #[error("its header is damaged: {0}")]
    Header(&'static str),
    /// Sealed with another key.
    #[error("it is sealed with another key than the one that was given")]
    OtherKey,
    /// Shorter or longer than its header says.
    #[error("it is cut off or has bytes too many: its header promises another length")]
    Length,
    /// The bytes are not those that were sealed.
    #[error(
        "it was changed since it was sealed, or belongs elsewhere: the proof of piece {0} does not hold"
    )]
    Forged(u64),
    /// A wrapped key is not the one that was wrapped.
    #[error(
        "the wrapped key was changed, or is of another owner, dataset or version than it is used for"
    )]
    Unwrap,
}
