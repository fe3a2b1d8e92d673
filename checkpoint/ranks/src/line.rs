//! A connection of frames that never waits: between the hub and a member.

use crate::socket::RankSocket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

/// Bytes of a frame for which memory is reserved before they come.
const AHEAD: usize = 1 << 20;

/// One end of it.
#[derive(Debug)]
pub(crate) struct FrameConnection {
    pub(crate) socket: Arc<RankSocket>,
    /// Bytes of a frame that comes in.
    limit: usize,
    head: [u8; 4],
    have: usize,
    body: Vec<u8>,
    outgoing: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of these that are sent.
    sent: usize,
}

impl FrameConnection {
    pub(crate) fn new(socket: RankSocket, limit: usize) -> Self {
        Self {
            socket: Arc::new(socket),
            limit,
            head: [0; 4],
            have: 0,
            body: Vec::new(),
            outgoing: VecDeque::new(),
            sent: 0,
        }
    }

    /// Sends a frame when there is space.
    pub(crate) fn push(&mut self, frame: Arc<[u8]>) {
        self.outgoing.push_back(frame);
    }

    /// Whether all is sent.
    pub(crate) fn idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Sends as much as there is space for.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.outgoing.front() {
            match self.socket.send(&[IoSlice::new(&first[self.sent..])]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.sent == first.len() {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }

    /// The next frame, without its length, if all of it is there.
    ///
    /// # Errors
    /// When the connection has ended, or a frame is too long.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let got = if self.have < self.head.len() {
                let got = self.socket.receive(&mut self.head[self.have..]);
                got.map(|n| self.have += n)
            } else {
                let len = u32::from_le_bytes(self.head) as usize;
                if len == 0 || len > self.limit {
                    return Err(malformed());
                }
                let at = self.body.len();
                self.body.resize(len.min(at + AHEAD), 0);
                let got = self.socket.receive(&mut self.body[at..]);
                self.body.truncate(at + *got.as_ref().unwrap_or(&0));
                if self.body.len() == len {
                    self.have = 0;
                    return Ok(Some(std::mem::take(&mut self.body)));
                }
                got.map(drop)
            };
            match got {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// The error for bytes that are no message.
pub(crate) fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it sent what is no message")
}
