//! Which programs may connect: their users, and how many there are.

use super::{MAX_CONNECTIONS, MAX_GUESTS, MAX_OF_GUEST, PAUSE, RESERVED, TarndServer, packet_of};
use crate::connection::{PendingReply, ProgramConnection};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tarn_proto::local::{Code, Reply, RequestError, UserId};
use tarn_sys::fdpass::{SocketPeer, peer, peer_groups};

impl TarndServer {
    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let fd = match accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) => {
                    tracing::warn!("cannot accept connections for {PAUSE:?}: {e}");
                    self.accept_later();
                    return;
                }
            };
            let Ok(SocketPeer { uid: user, pid, .. }) = peer(&fd) else {
                continue;
            };
            let groups = match user == self.own {
                true => None,
                // A user whose groups are not known has none.
                false => Some(peer_groups(&fd).unwrap_or_default()),
            };
            let mut connection = ProgramConnection::new(fd, user, pid);
            connection.guest = groups;
            if let Err(why) = self.admits(user, pid) {
                tracing::warn!(user, pid, "connection refused: {why}");
                let refused = PendingReply {
                    after: 0,
                    packet: packet_of(0, &Reply::Refused(why)),
                    fd: None,
                };
                let _ = connection.send(refused, 0);
                continue;
            }
            let key = self.next;
            if let Err(e) = self.watch(&connection, key) {
                tracing::warn!("cannot watch a connection: {e}");
                continue;
            }
            self.next += 1;
            self.connections.insert(key, connection);
        }
    }

    /// Connections that wait to be accepted do not wake this thread for a while.
    fn accept_later(&mut self) {
        if epoll::delete(&self.epoll, &self.listener).is_ok() {
            let pause = u64::try_from(PAUSE.as_nanos()).unwrap_or(u64::MAX);
            self.accepts_at = Some(self.clock.now().saturating_add(pause));
        }
    }

    fn admits(&self, user: UserId, pid: i32) -> Result<(), RequestError> {
        let guests = || self.connections.values().filter(|c| c.guest.is_some());
        if user != self.own && !self.guests {
            let text = format!(
                "this tarnd serves user {} only, and this is user {user}",
                self.own
            );
            return Err(RequestError::new(Code::Denied, text));
        }
        if user != self.own
            && (guests().count() >= MAX_GUESTS
                || guests().filter(|c| c.user == user).count() >= MAX_OF_GUEST)
        {
            let text = format!(
                "other users than {} have {MAX_GUESTS} connections at most, each of them {MAX_OF_GUEST}: close some",
                self.own
            );
            return Err(RequestError::new(Code::Busy, text));
        }
        let itself = u32::try_from(pid).is_ok_and(|pid| pid == std::process::id());
        let most = MAX_CONNECTIONS - if itself { 0 } else { RESERVED };
        if self.connections.len() >= most {
            let text = format!("there are {most} connections already: close some");
            return Err(RequestError::new(Code::Busy, text));
        }
        Ok(())
    }
}
