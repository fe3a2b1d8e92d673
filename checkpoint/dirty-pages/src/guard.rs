//! Pages that are watched by `mprotect` and a handler of signals.

use crate::fault;
use crate::table::{GRANULE, PageAccess, TrackedRange, protect};
use crate::watch::WriteDetector;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

/// Pages in the handler's table.
///
/// For each granule a set bit means that it is not protected: the first write to it was a fault, whose handler has taken the
/// protection off, and *then* set the bit. Nothing that was written is called clean:
///
/// - To protect again, the bit is taken first. A write between the two was reported before: its copy is made after that. A handler
///   in between finds nothing to do: there was no protection.
/// - A handler may take the protection off, another thread may write without a fault, and the written pages may be queried, all
///   before the handler sets the bit. So a query waits for the handlers that are at work; those that begin later let no earlier
///   write through.
/// - A handler that is so late that all was protected again meanwhile sets a bit of protected memory: it is reported once more,
///   and the write that it was called for is a fault once more.
#[derive(Debug)]
pub(crate) struct Guard {
    place: TrackedRange,
    pages: Range<usize>,
    /// Some may be protected.
    armed: bool,
}

impl Guard {
    pub(crate) fn new(pages: Range<usize>) -> io::Result<Self> {
        let place = TrackedRange::take(&pages)?;
        // Anonymous memory that was never touched falls apart for good into the mappings that `mprotect` makes of it: touched, they are
        // parts of one.
        fault::may_be_written(pages.start);
        Ok(Self {
            place,
            pages,
            armed: false,
        })
    }

    fn granule(&self, number: usize) -> Range<usize> {
        let start = self.pages.start + number * GRANULE;
        start..self.pages.end.min(start + GRANULE)
    }

    /// Protects memory whose bits were taken.
    fn close(&mut self, pages: Range<usize>) -> io::Result<()> {
        if !fault::is_installed() {
            return Err(io::Error::other(
                "another handler of SIGSEGV was installed since: install it before checkpoints begin",
            ));
        }
        self.armed = true;
        protect(pages, PageAccess::Read)
    }

    /// Nothing is protected, and everything counts as written.
    fn open(&mut self) -> io::Result<()> {
        let opened = match std::mem::take(&mut self.armed) {
            true => protect(self.pages.clone(), PageAccess::Write),
            // Other memory may be mapped there by now.
            false => Ok(()),
        };
        if opened.is_err() {
            // Only the pages that are mapped, where there is a gap.
            let page = rustix::param::page_size();
            for start in self.pages.clone().step_by(page) {
                let _ = protect(start..start + page, PageAccess::Write);
            }
        }
        let bits = self.place.bits().iter();
        bits.for_each(|word| word.store(!0, SeqCst));
        opened
    }
}

impl WriteDetector for Guard {
    fn arm(&mut self) -> io::Result<()> {
        let bits = self.place.bits().iter();
        bits.for_each(|word| word.store(0, SeqCst));
        self.close(self.pages.clone())
    }

    fn written(&mut self, again: bool, found: &mut Vec<Range<usize>>) -> io::Result<()> {
        self.place.quiet()?;
        for (n, word) in self.place.bits().iter().enumerate() {
            let bits = if again {
                word.swap(0, SeqCst)
            } else {
                word.load(SeqCst)
            };
            let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
            let granules = set.map(|bit| self.granule(n * 64 + bit));
            found.extend(granules.take_while(|granule| !granule.is_empty()));
        }
        match (found.first(), found.last()) {
            // At once, also protected memory in between: to do so by parts takes longer.
            (Some(first), Some(last)) if again => self.close(first.start..last.end),
            _ => Ok(()),
        }
    }

    fn disarm(&mut self) -> io::Result<()> {
        self.open()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Also in a process that was forked: the memory there is protected as it was here.
        let _ = self.open();
    }
}
