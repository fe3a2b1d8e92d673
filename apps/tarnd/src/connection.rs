//! One program's connection: its packets in and out, its memory.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::fstat;
use rustix::net::SendFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tarn_proto::local::{Code, JobId, RegionId, RequestError, UserId};
use tarn_sys::fdpass::send_packet;

/// Which connection; never used twice.
pub(crate) type ProgramConnectionId = u64;

/// Bytes of replies that a program has not read, beyond those in its socket; with more, its requests are not read.
const MAX_UNREAD: usize = 256 << 10;
/// Regions of one connection: each holds a descriptor.
const MAX_REGIONS: usize = 64;

/// Memory of a program.
#[derive(Debug, Clone)]
pub(crate) struct ProgramRegion {
    pub(crate) fd: Arc<OwnedFd>,
    /// Bytes that may be used.
    pub(crate) length: u64,
}

/// A reply that waits: for the records in the journal before it, or for the program to read.
#[derive(Debug)]
pub(crate) struct PendingReply {
    /// Records that must be durable first.
    pub(crate) after: u64,
    pub(crate) packet: Vec<u8>,
    /// It goes with it.
    pub(crate) fd: Option<OwnedFd>,
}

/// A program's connection.
#[derive(Debug)]
pub(crate) struct ProgramConnection {
    fd: OwnedFd,
    pub(crate) user: UserId,
    pub(crate) pid: i32,
    /// The groups of another user than tarnd's, who may have partitions and nothing else.
    pub(crate) guest: Option<Vec<u32>>,
    pub(crate) job: Option<JobId>,
    /// Partitions that are being opened or listed for it.
    partition_requests: u32,
    /// Whether versions were agreed on.
    pub(crate) greeted: bool,
    /// It is closed once all replies are out.
    pub(crate) closing: bool,
    regions: BTreeMap<RegionId, ProgramRegion>,
    next_region: RegionId,
    unread: VecDeque<PendingReply>,
    unread_bytes: usize,
    /// The events that the server waits for here: (readable, writable).
    pub(crate) interest: (bool, bool),
}

impl ProgramConnection {
    pub(crate) fn new(fd: OwnedFd, user: UserId, pid: i32) -> Self {
        Self {
            fd,
            user,
            pid,
            guest: None,
            job: None,
            partition_requests: 0,
            greeted: false,
            closing: false,
            regions: BTreeMap::new(),
            next_region: 0,
            unread: VecDeque::new(),
            unread_bytes: 0,
            interest: (true, false),
        }
    }

    /// Partitions that are being opened or listed for it.
    pub(crate) fn partition_requests(&self) -> u32 {
        self.partition_requests
    }

    pub(crate) fn begin_partition_request(&mut self) {
        self.partition_requests += 1;
    }

    pub(crate) fn end_partition_request(&mut self) {
        assert!(
            self.partition_requests > 0,
            "a partition was opened that nobody asked for"
        );
        self.partition_requests -= 1;
    }

    /// Whether more requests may be read.
    pub(crate) fn listens(&self) -> bool {
        !self.closing && self.unread_bytes < MAX_UNREAD
    }

    /// Whether all replies are out.
    pub(crate) fn is_read(&self) -> bool {
        self.unread.is_empty()
    }

    /// Replies in order: one that may go now goes now, unless others wait before it.
    pub(crate) fn send(&mut self, reply: PendingReply, durable: u64) -> io::Result<()> {
        if self.unread.is_empty() && reply.after <= durable && self.try_send(&reply)? {
            return Ok(());
        }
        self.unread_bytes += reply.packet.len();
        self.unread.push_back(reply);
        Ok(())
    }

    /// Sends waiting replies that may go.
    pub(crate) fn flush(&mut self, durable: u64) -> io::Result<()> {
        while let Some(reply) = self.unread.pop_front() {
            if reply.after > durable || !self.try_send(&reply)? {
                self.unread.push_front(reply);
                return Ok(());
            }
            self.unread_bytes -= reply.packet.len();
        }
        debug_assert_eq!(self.unread_bytes, 0, "no reply waits, but bytes of some do");
        Ok(())
    }

    /// Whether the first waiting reply only waits for the program.
    pub(crate) fn is_stuck(&self, durable: u64) -> bool {
        self.unread.front().is_some_and(|r| r.after <= durable)
    }

    fn try_send(&self, reply: &PendingReply) -> io::Result<bool> {
        let fd = reply.fd.as_ref().map(AsFd::as_fd);
        match send_packet(&self.fd, &reply.packet, fd, SendFlags::DONTWAIT) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Takes memory of the program.
    pub(crate) fn register(
        &mut self,
        fd: Option<OwnedFd>,
        length: u64,
    ) -> Result<RegionId, RequestError> {
        let invalid = |text: &str| RequestError::new(Code::Invalid, text);
        let fd = fd.ok_or_else(|| invalid("no descriptor came with the request: pass a memfd"))?;
        // Only memory of the kernel that nobody can unlink or mount over has seals.
        rustix::fs::fcntl_get_seals(&fd)
            .map_err(|_| invalid("the descriptor is no memfd (see memfd_create(2))"))?;
        let size = fstat(&fd).map_or(0, |s| u64::try_from(s.st_size).unwrap_or(0));
        if length == 0 || length > size {
            return Err(invalid(&format!(
                "{length} bytes are to be registered of a memfd of {size}"
            )));
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(RequestError::new(
                Code::Busy,
                format!("a connection has at most {MAX_REGIONS} regions; unregister one"),
            ));
        }
        let id = self.next_region;
        self.next_region = id.wrapping_add(1);
        let fd = Arc::new(fd);
        self.regions.insert(id, ProgramRegion { fd, length });
        Ok(id)
    }

    pub(crate) fn unregister(&mut self, id: RegionId) -> Result<(), RequestError> {
        let region = self.region(id)?;
        if Arc::strong_count(&region.fd) > 1 {
            return Err(RequestError::new(
                Code::Busy,
                format!("tasks that have not ended use region {id}; wait for them or cancel them"),
            ));
        }
        self.regions.remove(&id);
        Ok(())
    }

    pub(crate) fn region(&self, id: RegionId) -> Result<&ProgramRegion, RequestError> {
        self.regions.get(&id).ok_or_else(|| {
            RequestError::new(
                Code::NotFound,
                format!("this connection has no region {id}"),
            )
        })
    }
}

impl AsFd for ProgramConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
