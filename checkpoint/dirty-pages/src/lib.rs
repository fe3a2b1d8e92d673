//! L3: which pages of a program's memory were written. docs/internals/checkpoints.md, "Which pages were written".
//!
//! A [`Tracker`] is one of two ways to find that out. The kernel's own: userfaultfd, which protects pages from writing and
//! lets the kernel itself take the protection off at the first write, without a message to anybody (`WP_ASYNC`, Linux 6.7); and
//! `PAGEMAP_SCAN`, which lists the pages that have lost it. And on all systems: `mprotect`, and a handler of the signal (SIGSEGV)
//! that a write to a protected page is. A [`WriteWatch`] is one range of memory of this process.

#![allow(unsafe_code)]

mod fault;
mod guard;
mod huge;
mod kernel;
mod pinned;
mod shared;
mod table;
mod tracker;
mod uapi;
mod watch;

pub use huge::in_huge_pages;
pub use pinned::pinned;
pub use shared::is_private;
pub use tracker::Tracker;
pub use watch::WriteWatch;
