//! Which slots may have a shadow that is not in place: a page of the file that all have mapped.

use super::layout::{MARKS, PAGE};
use crate::view::{Mapping, View};
use rustix::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use tarn_ports::{MediumError, Promises};

/// The marks of a file.
#[derive(Debug)]
pub(super) struct Marks(View);

impl Marks {
    /// Those of a file, and the promises of its mapping.
    pub(super) fn new(
        file: &OwnedFd,
        path: &Path,
        writable: bool,
        guarded: bool,
    ) -> Result<(Self, Promises), MediumError> {
        let mapping = Mapping {
            from: MARKS,
            writable,
            populate: false,
            guarded,
        };
        let (view, promises) = View::new(file, path, mapping, PAGE, None)?;
        Ok((Self(view), promises))
    }

    fn of(&self, slot: u64) -> &AtomicU8 {
        let at = slot as usize % PAGE as usize;
        // SAFETY: within the page, which is mapped for as long as this lives; all use it so.
        unsafe { AtomicU8::from_ptr(self.0.pages.start.as_ptr().add(at)) }
    }

    /// Whether a slot has one.
    pub(super) fn is_set(&self, slot: u64) -> bool {
        self.of(slot).load(SeqCst) != 0
    }

    /// The caller has the slot alone, and the file is writable.
    pub(super) fn set(&self, slot: u64, marked: bool) {
        self.of(slot).store(marked.into(), SeqCst);
    }

    /// Whether the page was not there when it was touched.
    pub(super) fn is_broken(&self) -> bool {
        self.0.is_broken()
    }
}
