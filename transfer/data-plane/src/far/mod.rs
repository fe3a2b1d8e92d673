//! Storage memory of another node, on a stream that was given over to it (`tarn_proto::storage`).

mod client;
mod server;

pub use client::Far;
pub(crate) use server::serve;

use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::time::Duration;
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

/// A peer that is gone without a word is noticed within half a minute, however long nothing is to be said.
pub(crate) fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}
