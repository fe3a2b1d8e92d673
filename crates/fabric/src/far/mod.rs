//! Storage memory of another node, on a stream that was given over to it (`tarn_proto::storage`).

mod client;
mod server;

pub use client::Far;
pub(crate) use server::serve;

use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// A peer that is gone without a word is noticed within half a minute, however long nothing is to be said.
pub(crate) fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}
