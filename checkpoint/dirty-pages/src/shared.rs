//! The kinds of memory by `/proc/self/maps`: whether other processes may write to it, and whether it is plain.

use std::ops::Range;
use std::ptr::NonNull;

/// Whether memory is this process's alone: no other process writes to it, nor this one by way of another mapping, which a
/// [`crate::WriteWatch`] would not see. Memory that the system does not list counts as shared.
pub fn is_private(start: NonNull<u8>, len: usize) -> bool {
    let begin = start.addr().get();
    all_are(begin..begin.saturating_add(len), |flags| {
        flags.ends_with('p')
    })
}

/// Whether memory can be read and written, and nothing else.
pub(crate) fn is_plain(memory: &Range<usize>) -> bool {
    all_are(memory.clone(), |flags| flags.starts_with("rw-"))
}

/// Whether all mappings of memory have such flags.
fn all_are(memory: Range<usize>, such: impl Fn(&str) -> bool) -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| {
        let mut at = memory.start;
        for (range, flags) in maps.lines().filter_map(mapping) {
            if range.end > at && range.start < memory.end {
                if range.start > at || !such(flags) {
                    return false;
                }
                at = range.end;
            }
        }
        at >= memory.end
    })
}

/// The range of a line, and its flags: `7f00-7f01 rw-p ...`.
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?..address(end)?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[test]
    fn memory_that_is_shared_is_told_from_what_is_not() {
        let own = vec![0u8; 100_000];
        let start = NonNull::from(&own[0]);
        assert!(is_private(start, own.len()));
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        for (flags, private) in [(MapFlags::SHARED, false), (MapFlags::PRIVATE, true)] {
            // SAFETY: new ranges that the system chooses, which nothing else uses.
            unsafe {
                let start = mmap_anonymous(std::ptr::null_mut(), 8192, protection, flags).unwrap();
                let address = NonNull::new(start.cast::<u8>()).unwrap();
                assert_eq!(is_private(address.add(100), 5000), private);
                munmap(start, 8192).unwrap();
                assert!(!is_private(address, 4096));
            }
        }
    }
}
