//! Memory of large pages.

use rustix::mm::{Advice, madvise};
use std::io;

/// Memory that is not touched yet gets huge pages where it can.
///
/// # Errors
/// When the system has none.
pub fn in_huge_pages(memory: &mut [u8]) -> io::Result<()> {
    let page = rustix::param::page_size();
    let first = memory.as_ptr().addr();
    let whole = first.next_multiple_of(page)..(first + memory.len()) / page * page;
    if whole.is_empty() {
        return Ok(());
    }
    // SAFETY: the whole pages of this memory; their content stays.
    Ok(unsafe { madvise(whole.start as *mut _, whole.len(), Advice::LinuxHugepage) }?)
}
