//! Frames that wait to be sent by the end that asks: bounded, and a caller waits for space in it only until its deadline.

use crate::frames::Frame;
use crate::{QUEUE, lock};
use std::collections::VecDeque;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A message does not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameQueueError {
    /// Nobody writes any more.
    #[error("the session is over")]
    Closed,
    /// The deadline passed while the queue was full.
    #[error("the queue stayed full until the deadline")]
    Late,
}

/// The frames of one session, in the order in which they are written.
#[derive(Default)]
pub(crate) struct FrameQueue {
    state: Mutex<QueuedFrames>,
    /// A frame came or was taken, or the queue was closed.
    changed: Condvar,
}

#[derive(Default)]
struct QueuedFrames {
    frames: VecDeque<Frame>,
    is_closed: bool,
}

impl QueuedFrames {
    fn is_full(&self) -> bool {
        !self.is_closed && self.frames.len() >= QUEUE
    }
}

impl FrameQueue {
    /// Adds a message. Each of its frames waits for space, all of them together at most until `deadline`.
    ///
    /// # Errors
    /// `Late` after the deadline. If a part of the message was queued by then, the rest follows at once, beyond the bound: the node
    /// would keep half a message for as long as the session lasts.
    pub(crate) fn put(
        &self,
        message: impl Iterator<Item = Frame>,
        deadline: Option<Instant>,
    ) -> Result<(), FrameQueueError> {
        let mut is_begun = false;
        let mut is_late = false;
        for frame in message {
            let mut state = lock(&self.state);
            if !is_late {
                state = self.wait_for_space(state, deadline);
            }
            if state.is_closed {
                return Err(FrameQueueError::Closed);
            }
            is_late |= state.is_full();
            if is_late && !is_begun {
                return Err(FrameQueueError::Late);
            }
            state.frames.push_back(frame);
            is_begun = true;
            drop(state);
            self.changed.notify_all();
        }
        if is_late {
            return Err(FrameQueueError::Late);
        }
        Ok(())
    }

    fn wait_for_space<'a>(
        &self,
        state: MutexGuard<'a, QueuedFrames>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, QueuedFrames> {
        let full = |state: &mut QueuedFrames| state.is_full();
        match deadline {
            None => {
                let waited = self.changed.wait_while(state, full);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout_while(state, left, full);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// The next frame to write, if one comes in time.
    pub(crate) fn take(&self, timeout: Duration) -> Result<Frame, RecvTimeoutError> {
        let none = |state: &mut QueuedFrames| !state.is_closed && state.frames.is_empty();
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), timeout, none);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Err(RecvTimeoutError::Disconnected);
        }
        match state.frames.pop_front() {
            Some(frame) => {
                drop(state);
                self.changed.notify_all();
                Ok(frame)
            }
            None => {
                debug_assert!(waited.timed_out(), "an empty queue was waited for");
                Err(RecvTimeoutError::Timeout)
            }
        }
    }

    /// Drops what waits; senders that wait, and later ones, get an error.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.frames.clear();
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn beats(count: usize) -> impl Iterator<Item = Frame> {
        std::iter::repeat_n(Frame::Heartbeat, count)
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + SHORT)
    }

    #[test]
    fn a_message_that_has_not_begun_is_left_out_and_one_that_has_is_completed() {
        let queue = FrameQueue::default();
        assert_eq!(queue.put(beats(QUEUE - 1), soon()), Ok(()));
        let late = queue.put(beats(3), soon());
        assert_eq!(late, Err(FrameQueueError::Late));
        assert_eq!(lock(&queue.state).frames.len(), QUEUE + 2, "it is whole");
        let late = queue.put(beats(1), soon());
        assert_eq!(late, Err(FrameQueueError::Late));
        assert_eq!(lock(&queue.state).frames.len(), QUEUE + 2);
        for _ in 0..QUEUE + 2 {
            assert_eq!(queue.take(SHORT), Ok(Frame::Heartbeat));
        }
        assert_eq!(queue.take(SHORT), Err(RecvTimeoutError::Timeout));
        assert_eq!(queue.put(beats(1), soon()), Ok(()));
    }

    #[test]
    fn who_waits_for_space_returns_when_the_queue_is_closed() {
        let queue = FrameQueue::default();
        assert_eq!(queue.put(beats(QUEUE), None), Ok(()));
        std::thread::scope(|s| {
            let waiting = s.spawn(|| queue.put(beats(1), None));
            queue.close();
            assert_eq!(waiting.join().unwrap(), Err(FrameQueueError::Closed));
        });
        assert_eq!(queue.take(SHORT), Err(RecvTimeoutError::Disconnected));
    }
}
