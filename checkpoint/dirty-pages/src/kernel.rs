//! Pages that are watched by the kernel, without a message to anybody.

use crate::uapi::{self, ScanTarget};
use crate::watch::WriteDetector;
use rustix::fd::OwnedFd;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The descriptors that all watched memory of a process shares. `exec` closes them, and a process that `fork` made refuses to use
/// them.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) faults: OwnedFd,
    pub(crate) pagemap: OwnedFd,
}

/// Pages that may be registered.
#[derive(Debug)]
pub(crate) struct Registered {
    kernel: Arc<Kernel>,
    pages: Range<usize>,
    registered: bool,
}

impl Registered {
    pub(crate) fn new(kernel: Arc<Kernel>, pages: Range<usize>) -> io::Result<Self> {
        let mut new = Self {
            kernel,
            pages,
            registered: false,
        };
        new.register()?;
        Ok(new)
    }

    fn register(&mut self) -> io::Result<()> {
        self.registered = true;
        // SAFETY: the caller that watches this memory has vouched for it.
        unsafe { uapi::register(&self.kernel.faults, &self.pages) }
    }
}

impl WriteDetector for Registered {
    fn arm(&mut self) -> io::Result<()> {
        self.register()?;
        // SAFETY: as in `register`.
        unsafe { uapi::protect(&self.kernel.pagemap, &self.pages) }
    }

    fn written(&mut self, again: bool, found: &mut Vec<Range<usize>>) -> io::Result<()> {
        for which in [ScanTarget::Written, ScanTarget::Empty] {
            // SAFETY: as in `register`.
            unsafe { uapi::scan(&self.kernel.pagemap, &self.pages, which, again, found) }?;
        }
        Ok(())
    }

    fn disarm(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.registered) {
            return Ok(());
        }
        // SAFETY: as in `register`.
        unsafe { uapi::unregister(&self.kernel.faults, &self.pages) }
    }
}
