//! Copies that checksum on the way: each block is read once from memory, checksummed, and stored while it is in the first cache.
//! Stores go past the caches, as what is written is not read again soon.

use crate::flush::{LINE, fence};
use tarn_base::crc::{Crc, crc};

/// Bytes that stay in the first cache between checksum and store.
pub(crate) const BLOCK: usize = 16 << 10;
/// From so many bytes on stores go past the caches; fewer are cheaper through them.
pub const STREAM: usize = 4 << 10;

/// How bytes are stored past the caches here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stores {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// Through the caches.
    #[cfg(not(target_arch = "x86_64"))]
    Plain,
}

impl Stores {
    fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                Self::Avx512
            } else if is_x86_feature_detected!("avx") {
                Self::Avx
            } else {
                // Every x86-64 has it.
                Self::Sse2
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Plain
    }

    /// Copies whole lines to an address that is a multiple of a line.
    fn lines(self, to: &mut [u8], from: &[u8]) {
        debug_assert!(to.len() == from.len() && to.len().is_multiple_of(LINE));
        debug_assert!((to.as_ptr() as usize).is_multiple_of(LINE));
        let (to, from, len) = (to.as_mut_ptr(), from.as_ptr(), to.len());
        // SAFETY: both are `len` bytes, a multiple of a line, and do not overlap, as one of them is exclusive; `to` begins at a
        // line; the processor has the instructions, as `here` has found.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match self {
                Self::Avx512 => avx512(to, from, len),
                Self::Avx => avx(to, from, len),
                Self::Sse2 => sse2(to, from, len),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! stream {
    ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
        /// # Safety
        /// `len` bytes are at both, a multiple of 64, and `to` is a multiple of 64. The processor has the feature.
        #[target_feature(enable = $feature)]
        unsafe fn $name(to: *mut u8, from: *const u8, len: usize) {
            use std::arch::x86_64::*;
            const WIDTH: usize = size_of::<$vector>();
            let mut at = 0;
            while at < len {
                // SAFETY: `at` is below `len`, and a multiple of the width, which divides 64.
                unsafe {
                    let bytes = $load(from.add(at).cast());
                    $store(to.add(at).cast(), bytes);
                }
                at += WIDTH;
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
stream!(
    avx512,
    "avx512f",
    __m512i,
    _mm512_loadu_si512,
    _mm512_stream_si512
);
#[cfg(target_arch = "x86_64")]
stream!(avx, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
#[cfg(target_arch = "x86_64")]
stream!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);

/// Copies and returns the checksum. What was stored through the caches, as it is little or fills no line, is given to `flush`. All of
/// it comes before whatever this thread does next, also for others.
///
/// # Panics
/// When the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8], mut flush: impl FnMut(&[u8])) -> u64 {
    assert_eq!(to.len(), from.len());
    if from.len() < STREAM {
        to.copy_from_slice(from);
        flush(to);
        fence();
        return crc(from);
    }
    let stores = Stores::here();
    let mut sum = Crc::new();
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let (first, rest) = to.split_at_mut(head);
    first.copy_from_slice(&from[..head]);
    flush(first);
    sum.update(&from[..head]);
    let lines = rest.len() / LINE * LINE;
    let (lines, last) = rest.split_at_mut(lines);
    let (whole, tail) = from[head..].split_at(lines.len());
    for (to, from) in lines.chunks_mut(BLOCK).zip(whole.chunks(BLOCK)) {
        sum.update(from);
        stores.lines(to, from);
    }
    last.copy_from_slice(tail);
    flush(last);
    sum.update(tail);
    fence();
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        let mixed = |i: usize| (i.wrapping_mul(2_654_435_761) >> 11) as u8;
        (0..len).map(mixed).collect()
    }

    #[test]
    fn what_is_copied_is_what_was_there_however_it_lies() {
        let lengths = [
            0,
            1,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            3 * BLOCK + 77,
        ];
        for length in lengths {
            for (from_at, to_at) in [(0, 0), (1, 0), (0, 1), (63, 5), (7, 63), (64, 32)] {
                let from = bytes(length + from_at);
                let from = &from[from_at..];
                let mut room = vec![0xaa; length + to_at + 256];
                let mut flushed = 0;
                let sum = copy(&mut room[to_at..to_at + length], from, |part| {
                    flushed += part.len()
                });
                assert_eq!(
                    &room[to_at..to_at + length],
                    from,
                    "{length} {from_at} {to_at}"
                );
                assert!(
                    room[..to_at]
                        .iter()
                        .chain(&room[to_at + length..])
                        .all(|b| *b == 0xaa)
                );
                assert_eq!(sum, crc(from));
                // All that went through the caches, and no whole line beside it.
                assert!(
                    flushed == length || flushed < 2 * LINE,
                    "{flushed} of {length}"
                );
            }
        }
    }

    /// Every kind of store that this processor has.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn all_stores_copy_alike() {
        let from = bytes(8 * LINE);
        let all = [
            (Stores::Avx512, is_x86_feature_detected!("avx512f")),
            (Stores::Avx, is_x86_feature_detected!("avx")),
            (Stores::Sse2, true),
        ];
        for (stores, _) in all.into_iter().filter(|(_, there)| *there) {
            let mut room = vec![0; 9 * LINE];
            let at = room.as_ptr().align_offset(LINE);
            stores.lines(&mut room[at..at + 8 * LINE], &from);
            crate::flush::fence();
            assert_eq!(&room[at..at + 8 * LINE], &from[..], "{stores:?}");
        }
    }
}
