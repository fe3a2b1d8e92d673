//! What comes to the loop: news of nodes, and word of the threads that speak to them.

use crate::MAX_UNHEARD;
use crate::link::Linked;
use crate::lost::Returned;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_base::id::NodeId;
use tarn_base::nodes::Attempt;
use tarn_proto::node::{self, News};

/// One of them. Of a session that is over, none counts.
pub(crate) enum Letter {
    /// News; an error is why the session is over or must be.
    News(NodeId, u64, Result<News, String>),
    /// An attempt was not handed out, and why: a file that its command names has changed or cannot be looked at.
    NotBegun(NodeId, u64, Attempt, String),
    /// A lost node can be reached again.
    Linked(NodeId, u64, Linked),
    /// It has been made ready.
    Returned(NodeId, u64, Result<Returned, String>),
}

#[derive(Default)]
struct Inner {
    letters: VecDeque<Letter>,
    unheard: BTreeMap<NodeId, usize>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// There is a letter.
    came: Condvar,
    /// There is room, or the loop is over.
    room: Condvar,
}

/// Where the sessions of a run put what their nodes say. Cheap to clone.
#[derive(Clone, Default)]
pub struct Mail(Arc<Shared>);

impl Mail {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a session calls for what its node says, in order, and once with `None` when it is over. `session` counts the
    /// sessions with the node: 0 for the first, else what [`crate::Relink`] was told. It waits while much of this node is
    /// unheard.
    pub fn of(
        &self,
        node: NodeId,
        session: u64,
    ) -> impl FnMut(Option<Vec<u8>>) + Send + 'static + use<> {
        let mail = self.clone();
        move |said| {
            let news = match said {
                Some(bytes) => node::decode::<News>(&bytes).map_err(|e| e.to_string()),
                None => Err("its session has ended".into()),
            };
            mail.put_news(node, session, news);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_news(&self, node: NodeId, session: u64, news: Result<News, String>) {
        let full = |i: &mut Inner| {
            !i.closed
                && i.unheard
                    .get(&node)
                    .is_some_and(|count| *count >= MAX_UNHEARD)
        };
        let waited = self.0.room.wait_while(self.lock(), full);
        let mut inner = waited.unwrap_or_else(PoisonError::into_inner);
        if !inner.closed {
            *inner.unheard.entry(node).or_default() += 1;
            inner.letters.push_back(Letter::News(node, session, news));
            self.0.came.notify_one();
        }
    }

    /// Word of a thread of this world. Whether anybody will read it.
    pub(crate) fn put(&self, letter: Letter) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        inner.letters.push_back(letter);
        self.0.came.notify_one();
        true
    }

    /// The next letter, if one comes in time.
    pub(crate) fn take(&self, patience: Duration) -> Option<Letter> {
        let mut inner = self.lock();
        if inner.letters.is_empty() && !patience.is_zero() {
            let none = |i: &mut Inner| i.letters.is_empty();
            let waited = self.0.came.wait_timeout_while(inner, patience, none);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let letter = inner.letters.pop_front()?;
        if let Letter::News(node, ..) = &letter
            && let Some(count) = inner.unheard.get_mut(node)
        {
            *count = count.saturating_sub(1);
            self.0.room.notify_all();
        }
        Some(letter)
    }

    /// Nobody reads any more: whoever waits goes on.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.letters.clear();
        self.0.room.notify_all();
    }

    /// Waits; whether the loop is over then.
    pub(crate) fn closed_within(&self, patience: Duration) -> bool {
        let open = |i: &mut Inner| !i.closed;
        let waited = self.0.room.wait_timeout_while(self.lock(), patience, open);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_chatty_node_waits_and_holds_up_nobody_else() {
        let mail = Mail::new();
        let progress = || {
            let (transfers, steps) = (Vec::new(), Vec::new());
            Some(node::encode(News::Progress { transfers, steps }).unwrap())
        };
        let (chatty, quiet) = (NodeId(0), NodeId(1));
        let mut says = mail.of(chatty, 0);
        let thread = std::thread::spawn(move || {
            for _ in 0..=MAX_UNHEARD {
                says(progress());
            }
        });
        let full = || mail.lock().letters.len() == MAX_UNHEARD;
        let since = Instant::now();
        while !full() && since.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        mail.of(quiet, 0)(progress());
        assert_eq!(mail.lock().letters.len(), MAX_UNHEARD + 1);
        assert!(!thread.is_finished());
        assert!(mail.take(Duration::ZERO).is_some());
        thread.join().unwrap();
        assert_eq!(mail.lock().letters.len(), MAX_UNHEARD + 1);
    }

    #[test]
    fn whoever_waits_goes_on_when_nobody_reads_any_more() {
        let mail = Mail::new();
        let mut says = mail.of(NodeId(0), 0);
        (0..MAX_UNHEARD).for_each(|_| says(None));
        let thread = std::thread::spawn(move || says(None));
        mail.close();
        thread.join().unwrap();
        assert!(mail.closed_within(Duration::from_secs(60)));
        assert!(mail.take(Duration::ZERO).is_none());
    }
}
