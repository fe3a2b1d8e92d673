//! Storage memory of another node, on a stream that was given over to it (`tarn_proto::storage`).

mod client;
mod server;

pub use client::Far;
pub(crate) use server::serve;

use tarn_proto::storage::Answer;
use tarn_ring::Failure;

/// What an answer says.
///
/// # Errors
/// Why it was not done.
pub fn result(answer: Answer) -> Result<u64, Failure> {
    match answer.code {
        0 => Ok(answer.value),
        code => Err(Failure::of_code(i32::try_from(code).unwrap_or(0))),
    }
}
