//! Storage memory of another node, on a stream that was given over to it (`tarn_proto::storage`).

mod client;
mod server;

pub use client::RemoteStorage;
pub(crate) use server::serve;

use tarn_proto::storage::StorageReply;
use tarn_ring::StorageRequestError;

/// The result that an answer carries.
///
/// # Errors
/// Why it was not done.
pub fn result(answer: StorageReply) -> Result<u64, StorageRequestError> {
    match answer.code {
        0 => Ok(answer.value),
        code => Err(StorageRequestError::of_code(
            i32::try_from(code).unwrap_or(0),
        )),
    }
}
