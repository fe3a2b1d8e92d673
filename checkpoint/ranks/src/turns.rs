//! The one thread of a rank that has its lines: to the hub, and in rank 0 the hub's; and that accepts connections. It never waits
//! for one of them.

use crate::folder::AGAIN;
use crate::hub::Hub;
use crate::line::{FrameConnection, malformed};
use crate::serve;
use crate::socket::Listener;
use crate::state::MeetingContext;
use crate::wire::{FromHub, ToHub};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pause after accepting has failed, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of the thread that has the lines.
pub(crate) struct Turns {
    pub(crate) shared: Arc<MeetingContext>,
    pub(crate) listeners: Vec<Listener>,
    /// To the hub, until that is gone.
    pub(crate) line: Option<FrameConnection>,
    pub(crate) hub: Option<Hub>,
}

/// Reports that the thread has ended, in any way.
struct ThreadEndGuard(Arc<MeetingContext>);

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Turns {
    pub(crate) fn start(self) -> io::Result<()> {
        let named = std::thread::Builder::new().name("tarn-ranks".into());
        named.stack_size(256 << 10).spawn(move || {
            // After all that `run` has is closed.
            let _end = ThreadEndGuard(Arc::clone(&self.shared));
            self.run();
        })?;
        Ok(())
    }

    fn run(mut self) {
        let mut accept_again = Instant::now();
        let mut left = false;
        loop {
            // First, as some orders wait until all is sent.
            self.flush_line();
            let leave = self.take_orders(&mut left);
            if let Some(hub) = &mut self.hub {
                hub.flush();
            }
            self.flush_line();
            let alone = || self.hub.iter().all(|h| h.sockets().next().is_none());
            let over = |until| Instant::now() >= until || (self.line.is_none() && alone());
            if leave.is_some_and(over) {
                return;
            }
            let accepts = leave.is_none() && Instant::now() >= accept_again;
            let Some(ready) = self.wait(accepts, leave.is_some() || !accepts) else {
                std::thread::sleep(PAUSE);
                continue;
            };
            if ready.listeners.iter().any(|n| !self.accept(*n)) {
                accept_again = Instant::now() + PAUSE;
            }
            if let Some(hub) = &mut self.hub {
                ready.seats.iter().for_each(|rank| hub.receive(*rank));
            }
            if ready.line {
                self.receive_line();
            }
        }
    }

    /// Takes the callers' messages, and the ranks that have come. Returns when it is to end, if it is.
    fn take_orders(&mut self, left: &mut bool) -> Option<Instant> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let mut state = self.shared.lock();
        for (who, socket) in std::mem::take(&mut state.members) {
            if let Some(hub) = &mut self.hub {
                hub.admit(&who, socket);
            }
        }
        let words = std::mem::take(&mut state.words);
        let missing_request = state.missing_request.take();
        let leave = state.leave;
        if let Some(line) = &mut self.line {
            words.into_iter().for_each(|word| line.push(word));
            if let Some(number) = missing_request {
                line.push(ToHub::Who(number).frame());
            }
            // Only the newest, once all else is sent: the queue does not grow with the reports.
            let new_progress = state
                .new_progress
                .take_if(|_| line.idle() || leave.is_some());
            if let Some(reached) = new_progress {
                line.push(ToHub::Progress(reached).frame());
            }
            if leave.is_some() && !std::mem::replace(left, true) {
                line.push(ToHub::Leave.frame());
            }
        }
        leave
    }

    fn flush_line(&mut self) {
        if let Some(Err(e)) = self.line.as_mut().map(FrameConnection::flush) {
            self.end_line(&e);
        }
    }

    fn end_line(&mut self, why: &io::Error) {
        self.line = None;
        self.shared.hub_gone(why.to_string());
    }

    fn receive_line(&mut self) {
        while let Some(line) = &mut self.line {
            let message = match line.next() {
                Ok(None) => return,
                Ok(Some(frame)) => FromHub::parse(&frame).ok_or_else(malformed),
                Err(e) => Err(e),
            };
            // Rank 0 ends and waits until the others know it.
            let last = matches!(message, Ok(FromHub::Gone(0, ..)));
            match message.and_then(|message| self.shared.receive(message)) {
                Ok(()) if last => self.line = None,
                Ok(()) => {}
                Err(e) => return self.end_line(&e),
            }
        }
    }

    /// Waits until something can be done. `None`: the system cannot wait now.
    fn wait(&self, accepts: bool, soon: bool) -> Option<ReadySources> {
        let seats: Vec<_> = self.hub.iter().flat_map(Hub::sockets).collect();
        let flags = |more: bool| match more {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        for (_, socket, more) in &seats {
            fds.push(PollFd::new(socket, flags(*more)));
        }
        let line = self.line.as_ref();
        let line = line.map(|l| PollFd::from_borrowed_fd(l.socket.as_fd(), flags(!l.idle())));
        let has_line = line.is_some();
        fds.extend(line);
        if accepts {
            let listeners = self.listeners.iter();
            fds.extend(listeners.map(|l| PollFd::new(l, PollFlags::IN)));
        }
        let soon = soon.then(|| Timespec::try_from(AGAIN).ok()).flatten();
        poll(&mut fds, soon.as_ref())
            .or_else(|e| match e {
                rustix::io::Errno::INTR => Ok(0),
                e => Err(e),
            })
            .ok()?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (of_seats, rest) = ready[1..].split_at(seats.len());
        let (of_line, of_listeners) = rest.split_at(usize::from(has_line));
        Some(ReadySources {
            seats: (seats.iter().zip(of_seats))
                .filter_map(|(seat, ready)| ready.then_some(seat.0))
                .collect(),
            line: of_line == [true],
            listeners: (0..of_listeners.len())
                .filter(|n| of_listeners[*n])
                .collect(),
        })
    }

    /// Accepts a connection. `false`: it cannot be, for now.
    fn accept(&self, listener: usize) -> bool {
        match self.listeners[listener].accept() {
            Ok((socket, from)) => serve::start(&self.shared, socket, from).is_ok(),
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

struct ReadySources {
    seats: Vec<usize>,
    line: bool,
    listeners: Vec<usize>,
}
