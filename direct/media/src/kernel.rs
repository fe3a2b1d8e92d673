//! Copies that checksum on the way: each byte is read once from memory, and checksummed and stored in one
//! pass, or block by block while it is in the first cache. Stores go past the caches, as the written bytes
//! are not read again soon.

use crate::flush::{Flush, LINE};
#[cfg(target_arch = "x86_64")]
use crate::fold;
use std::ops::Range;
use tarn_types::crc::{Crc, crc};

pub use crate::flush::fence;

/// Bytes that stay in the first cache between checksum and store.
const BLOCK: usize = 16 << 10;
/// From so many bytes on stores go past the caches; fewer are cheaper through them.
pub const STREAM: usize = 4 << 10;

/// Bytes that are copied between two looks ahead.
const STRETCH: usize = 512;

/// How bytes are stored past the caches here, and checksummed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreMethod {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// In the pass that checksums. With AVX-512 the checksum's own library is as fast.
    #[cfg(target_arch = "x86_64")]
    Fold,
    #[cfg(target_arch = "x86_64")]
    Avx,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    /// Through the caches.
    #[cfg(not(target_arch = "x86_64"))]
    Plain,
}

impl StoreMethod {
    fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                Self::Avx512
            } else if fold::can() {
                Self::Fold
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

    /// Copies whole lines to addresses that are multiples of a line, and takes them into the checksum. How
    /// bytes are taken that have to be checksummed as they are stored: in one pass, where that is possible.
    fn one_pass() -> Self {
        #[cfg(target_arch = "x86_64")]
        if fold::can() {
            return Self::Fold;
        }
        Self::here()
    }

    fn copy<const N: usize>(self, mut to: [&mut [u8]; N], from: &[u8], sum: &mut Crc) {
        // SAFETY: all are as long, and do not overlap, as each of `to` is exclusive; they begin at lines.
        let mut done = unsafe { self.steps(&mut to, from.as_ptr(), sum) };
        for block in from[done..].chunks(BLOCK) {
            sum.update(block);
            let place = done..done + block.len();
            done = place.end;
            for to in &mut to {
                self.lines(&mut to[place.clone()], block);
            }
        }
    }

    /// Copies as much as can be copied in the pass that checksums, and takes it into the checksum; as many
    /// bytes.
    ///
    /// # Safety
    /// There are as many bytes at `from` as at each of `to`, not those of one of them, and each of `to`
    /// begins at a line.
    unsafe fn steps<const N: usize>(
        self,
        to: &mut [&mut [u8]; N],
        from: *const u8,
        sum: &mut Crc,
    ) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Fold && to[0].len() >= fold::STEP {
            let len = to[0].len() / fold::STEP * fold::STEP;
            let to = to.each_mut().map(|to| to.as_mut_ptr());
            // SAFETY: as the caller says; these are whole steps, and the processor can, as `here` has found.
            let folded = unsafe { fold::copy(to, from, len, sum.finish()) };
            *sum = Crc::new();
            sum.update(&folded);
            return len;
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (to, from, sum);
        0
    }

    /// Copies whole lines to an address that is a multiple of a line.
    fn lines(self, to: &mut [u8], from: &[u8]) {
        debug_assert_eq!(to.len(), from.len());
        // SAFETY: both are as long, and do not overlap, as one of them is exclusive.
        unsafe { self.store(to.as_mut_ptr(), from.as_ptr(), to.len()) };
    }

    /// The same where others may write.
    ///
    /// # Safety
    /// There are so many bytes at both, a multiple of a line, which do not overlap; `to` is a multiple of a
    /// line.
    unsafe fn store(self, to: *mut u8, from: *const u8, len: usize) {
        debug_assert!(len.is_multiple_of(LINE) && (len == 0 || to.addr().is_multiple_of(LINE)));
        // SAFETY: as the caller says; the processor has the instructions, as `here` has found.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match self {
                Self::Avx512 => avx512(to, from, len),
                Self::Fold | Self::Avx => avx(to, from, len),
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
        /// `len` bytes are at both, a multiple of 64, and `to` is a multiple of 64. The processor has the
        /// feature.
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

/// Copies to one place or more and returns the checksum (CRC-64/NVME): each byte is read once. Bytes that
/// were stored through the caches, because they are few, fill no line, or the places are aligned differently,
/// are given to `flush`. All of it comes before whatever this thread does next, also for others.
///
/// # Panics
/// When the lengths differ.
///
/// # Examples
/// ```
/// use tarn_media::kernel::copy;
///
/// let from = vec![7; 100_000];
/// let (mut one, mut other) = (vec![0; 100_000], vec![0; 100_000]);
/// let sum = copy([&mut one, &mut other], &from, |_| {});
/// assert_eq!((&one, &other), (&from, &from));
/// assert_eq!(sum, tarn_types::crc::crc(&from));
/// ```
pub fn copy<const N: usize>(
    mut to: [&mut [u8]; N],
    from: &[u8],
    mut flush: impl FnMut(&[u8]),
) -> u64 {
    const { assert!(N > 0) };
    assert!(to.iter().all(|to| to.len() == from.len()));
    let head = to[0].as_ptr().align_offset(LINE);
    let alike = to.iter().all(|to| to.as_ptr().align_offset(LINE) == head);
    if from.len() < STREAM || !alike {
        for to in &mut to {
            to.copy_from_slice(from);
            flush(to);
        }
        fence();
        return crc(from);
    }
    copy_by(StoreMethod::here(), to, from, flush)
}

fn copy_by<const N: usize>(
    stores: StoreMethod,
    to: [&mut [u8]; N],
    from: &[u8],
    mut flush: impl FnMut(&[u8]),
) -> u64 {
    let mut sum = Crc::new();
    let head = to[0].as_ptr().align_offset(LINE).min(from.len());
    let (first, rest) = from.split_at(head);
    let (lines, last) = rest.split_at(rest.len() / LINE * LINE);
    sum.update(first);
    let to = to.map(|to| {
        let (to_first, to) = to.split_at_mut(head);
        let (to_lines, to_last) = to.split_at_mut(lines.len());
        for (to, from) in [(to_first, first), (to_last, last)] {
            to.copy_from_slice(from);
            flush(to);
        }
        to_lines
    });
    stores.copy(to, lines, &mut sum);
    sum.update(last);
    fence();
    sum.finish()
}

/// Copies without a checksum, past the caches but for bytes of less than a line at both ends: these lines
/// are written back by `flush`. A fence must follow.
///
/// # Safety
/// There are so many bytes at both, which do not overlap.
pub(crate) unsafe fn stream(to: *mut u8, from: *const u8, len: usize, flush: Flush) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE * LINE;
    let through = |range: Range<usize>| {
        // SAFETY: a part of the bytes that are there.
        unsafe {
            let to = to.add(range.start);
            from.add(range.start)
                .copy_to_nonoverlapping(to, range.len());
            flush.write_back(to, range.len());
        }
    };
    through(0..head);
    // SAFETY: whole lines of the bytes that are there.
    unsafe { StoreMethod::here().store(to.add(head), from.add(head), lines) };
    through(head + lines..len);
}

/// Copies bytes through the caches, and meanwhile has `ahead` fetched, which is to be copied next: as much of
/// it as this copies.
///
/// # Safety
/// There are so many bytes at `to` and `from`, which do not overlap. `ahead` has no requirements.
pub(crate) unsafe fn copy_and_fetch(
    to: *mut u8,
    from: *const u8,
    length: usize,
    ahead: (*const u8, usize),
) {
    let (next, ahead) = ahead;
    for at in (0..length).step_by(STRETCH) {
        for line in (at..ahead.min(at + STRETCH)).step_by(LINE) {
            fetch(next.wrapping_add(line));
        }
        // SAFETY: a part of the bytes that are there.
        unsafe {
            let from = from.add(at);
            from.copy_to_nonoverlapping(to.add(at), STRETCH.min(length - at));
        }
    }
}

/// Has a line fetched as far as the second cache: in the first it would push out what is copied just now. Any
/// address may be given.
#[inline(always)]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never fails.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Copies bytes past the caches, without a checksum. [`fence`] must follow, once for many of them.
///
/// # Panics
/// When they are not as many.
pub fn past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    // SAFETY: as many are at both, and one of them is exclusive.
    unsafe { stream(to.as_mut_ptr(), from.as_ptr(), from.len(), Flush::None) };
}

/// Copies bytes that others may be writing to, and returns the checksum of the copied bytes, even if others
/// are there by now.
///
/// # Safety
/// There are as many bytes at `from`, and they are not those of `to`.
pub(crate) unsafe fn take(to: &mut [u8], from: *const u8) -> u64 {
    let mut sum = Crc::new();
    let through = |part: &mut [u8], at: usize, sum: &mut Crc| {
        for (n, to) in part.chunks_mut(BLOCK).enumerate() {
            // SAFETY: bytes that are there; no reference to them is made.
            unsafe {
                let from = from.add(at + n * BLOCK);
                from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
            }
            sum.update(to);
        }
    };
    let head = match to.len() {
        ..STREAM => to.len(),
        len => to.as_ptr().align_offset(LINE).min(len),
    };
    through(&mut to[..head], 0, &mut sum);
    // SAFETY: the rest of the bytes that are there, and of `to`, from a line on, if any. It reads each byte once.
    let done = head
        + unsafe {
            StoreMethod::one_pass().steps(&mut [&mut to[head..]], from.add(head), &mut sum)
        };
    through(&mut to[done..], done, &mut sum);
    fence();
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
                let mut space = vec![0xaa; length + to_at + 256];
                let mut flushed = 0;
                let sum = copy([&mut space[to_at..to_at + length]], from, |part| {
                    flushed += part.len()
                });
                assert_eq!(
                    &space[to_at..to_at + length],
                    from,
                    "{length} {from_at} {to_at}"
                );
                assert!(
                    space[..to_at]
                        .iter()
                        .chain(&space[to_at + length..])
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

    #[test]
    fn what_is_fetched_ahead_is_not_touched_and_may_be_anywhere() {
        for length in [0, 1, STRETCH - 1, STRETCH, STRETCH + 1, 3 * STRETCH + 7] {
            let from = bytes(length);
            let next = [
                std::ptr::null(),
                from.as_ptr().wrapping_sub(1 << (usize::BITS - 8)),
            ];
            for ahead in next.map(|next| [(next, 0), (next, 1), (next, usize::MAX)]) {
                for ahead in ahead {
                    let mut to = vec![0; length];
                    // SAFETY: as many bytes at both.
                    unsafe { copy_and_fetch(to.as_mut_ptr(), from.as_ptr(), length, ahead) };
                    assert_eq!(to, from);
                }
            }
        }
    }

    /// Every kind of store that this processor has.
    fn all() -> Vec<StoreMethod> {
        #[cfg(target_arch = "x86_64")]
        let all = [
            (StoreMethod::Avx512, is_x86_feature_detected!("avx512f")),
            (StoreMethod::Fold, fold::can()),
            (StoreMethod::Avx, is_x86_feature_detected!("avx")),
            (StoreMethod::Sse2, true),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [(StoreMethod::Plain, true)];
        all.into_iter()
            .filter(|(_, there)| *there)
            .map(|(stores, _)| stores)
            .collect()
    }

    proptest! {
        /// For all bytes, lengths and alignments of source and destination.
        #[test]
        fn all_stores_copy_and_checksum_alike(
            length in 0..3 * BLOCK,
            from_at in 0..2 * LINE,
            to_at in 0..2 * LINE,
            seed: u64,
        ) {
            let mut next = seed;
            let mut byte = || {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (next >> 56) as u8
            };
            let from: Vec<u8> = (0..from_at + length).map(|_| byte()).collect();
            let from = &from[from_at..];
            for stores in all() {
                let mut space = vec![0xaa; to_at + length + 2 * LINE];
                let mut flushed = 0;
                let to = &mut space[to_at..to_at + length];
                let mut other = vec![0xaa; to_at + length + 2 * LINE];
                let alignment = |bytes: &[u8]| bytes.as_ptr().align_offset(LINE);
                let at = (0..LINE).find(|at| alignment(&other[*at..]) == alignment(to)).unwrap_or(0);
                let other = &mut other[at..at + length];
                let sum = copy_by(stores, [to, other], from, |part| flushed += part.len());
                prop_assert!(&*other == from, "{stores:?}");
                prop_assert!(&*to == from, "{stores:?}");
                prop_assert_eq!(sum, crc(from), "{:?}", stores);
                // No whole line has gone through the caches.
                prop_assert!(flushed < 4 * LINE, "{:?}", stores);
                let around = space[..to_at].iter().chain(&space[to_at + length..]);
                prop_assert!(around.into_iter().all(|b| *b == 0xaa), "{stores:?}");
            }
            let mut space = vec![0xaa; to_at + length + 2 * LINE];
            let to = &mut space[to_at..to_at + length];
            // SAFETY: `from` is as long, and nobody writes to it.
            prop_assert_eq!(unsafe { take(to, from.as_ptr()) }, crc(from));
            prop_assert!(&*to == from);
            to.fill(0);
            // SAFETY: as above.
            unsafe { stream(to.as_mut_ptr(), from.as_ptr(), from.len(), Flush::here()) };
            prop_assert!(&*to == from);
            let around = space[..to_at].iter().chain(&space[to_at + length..]);
            prop_assert!(around.into_iter().all(|b| *b == 0xaa));
        }
    }
}
