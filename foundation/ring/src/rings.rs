//! The two rings of a queue pair.

use crate::entry::{Cqe, Sqe};
use std::ptr::NonNull;

/// Entries of a submission ring, at most: 4 MiB of requests.
pub const MAX_ENTRIES: u32 = 1 << 16;

/// The rings: `struct dsa_queue` is their public part, and its inline functions fill and read them. They
/// belong to one thread.
///
/// # Examples
/// ```
/// use tarn_ring::{Cqe, Rings, Sqe};
///
/// let mut rings = Rings::new(2).unwrap();
/// assert!(rings.prepare(Sqe { user_data: 1, ..Sqe::default() }));
/// assert!(rings.prepare(Sqe { user_data: 2, ..Sqe::default() }));
/// assert!(!rings.prepare(Sqe::default())); // it is full
///
/// // What a queue pair does with them:
/// while rings.prepared() > 0 && rings.completion_space() > 0 {
///     let request = rings.first();
///     rings.take();
///     rings.complete(Cqe { user_data: request.user_data, ..Cqe::default() });
/// }
/// rings.publish();
/// assert_eq!(rings.reap().map(|end| end.user_data), Some(1));
/// ```
/// Positions count on and wrap around; an entry is that of the position's lowest bits. A program in C can
/// write anything to the public part: with any content, only entries of the rings are touched here.
#[repr(C)]
#[derive(Debug)]
pub struct Rings {
    sqes: *mut Sqe,
    cqes: *mut Cqe,
    sq_mask: u32,
    /// The next that is taken.
    sq_head: u32,
    /// Behind the prepared entries.
    sq_tail: u32,
    cq_mask: u32,
    /// The next that is reaped.
    cq_head: u32,
    /// Behind the entries that can be reaped.
    cq_tail: u32,
    // From here on nothing is public.
    /// Behind the completions that are written.
    cq_written: u32,
    entries: u32,
    requests: NonNull<[Sqe]>,
    completions: NonNull<[Cqe]>,
}

impl Rings {
    /// Rings of `entries` requests, a power of two up to [`MAX_ENTRIES`], and twice as many completions;
    /// `None` for other numbers.
    pub fn new(entries: u32) -> Option<Self> {
        if !entries.is_power_of_two() || entries > MAX_ENTRIES {
            return None;
        }
        let requests = kept(entries as usize);
        let completions = kept(2 * entries as usize);
        Some(Self {
            sqes: requests.cast().as_ptr(),
            cqes: completions.cast().as_ptr(),
            sq_mask: entries - 1,
            sq_head: 0,
            sq_tail: 0,
            cq_mask: 2 * entries - 1,
            cq_head: 0,
            cq_tail: 0,
            cq_written: 0,
            entries,
            requests,
            completions,
        })
    }

    /// Requests that there is space for.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Requests that were prepared and not taken.
    #[inline]
    pub fn prepared(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head).min(self.entries)
    }

    /// Completions that there is space for.
    #[inline]
    pub fn completion_space(&self) -> u32 {
        // The program's positions may be anything: then there is no space.
        let used = self.cq_written.wrapping_sub(self.cq_head);
        (2 * self.entries).saturating_sub(used)
    }

    /// Prepares a request; false when the ring is full.
    #[inline]
    pub fn prepare(&mut self, request: Sqe) -> bool {
        if self.prepared() == self.entries {
            return false;
        }
        let entry = self.request(self.sq_tail);
        // SAFETY: an entry of the ring, which nobody else has now.
        unsafe { entry.write(request) };
        self.sq_tail = self.sq_tail.wrapping_add(1);
        true
    }

    /// The first of those that were prepared.
    #[inline(always)]
    pub fn first(&self) -> Sqe {
        self.look(0)
    }

    /// One of those that were prepared; the first is 0.
    #[inline(always)]
    pub fn look(&self, number: u32) -> Sqe {
        let entry = self.request(self.sq_head.wrapping_add(number));
        // SAFETY: an entry of the ring, which nobody writes while this has it: any bytes are a request.
        unsafe { entry.read() }
    }

    /// Takes the first of those that were prepared away.
    #[inline]
    pub fn take(&mut self) {
        self.sq_head = self.sq_head.wrapping_add(1);
    }

    /// Writes a completion, which cannot be reaped before [`publish`](Self::publish). There must be space for
    /// it.
    #[inline]
    pub fn complete(&mut self, completion: Cqe) {
        debug_assert!(self.completion_space() > 0, "a completion without room");
        let entry = self.completion(self.cq_written);
        // SAFETY: an entry of the ring, which nobody else has now.
        unsafe { entry.write(completion) };
        self.cq_written = self.cq_written.wrapping_add(1);
    }

    /// Lets all completions that were written be seen.
    #[inline]
    pub fn publish(&mut self) {
        self.cq_tail = self.cq_written;
    }

    /// Changes the completions that are not to be seen yet.
    #[cold]
    pub fn revise(&mut self, change: &mut dyn FnMut(&mut Cqe)) {
        let count = self.cq_written.wrapping_sub(self.cq_tail);
        for number in 0..count.min(2 * self.entries) {
            let entry = self.completion(self.cq_tail.wrapping_add(number));
            // SAFETY: an entry of the ring, which was written, and nobody else has now.
            change(unsafe { &mut *entry });
        }
    }

    /// Completions that can be reaped.
    #[inline]
    pub fn completed(&self) -> u32 {
        let count = self.cq_tail.wrapping_sub(self.cq_head);
        count.min(2 * self.entries)
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn reap(&mut self) -> Option<Cqe> {
        if self.completed() == 0 {
            return None;
        }
        // SAFETY: an entry of the ring, which was written.
        let completion = unsafe { self.completion(self.cq_head).read() };
        self.cq_head = self.cq_head.wrapping_add(1);
        Some(completion)
    }

    #[inline]
    fn request(&self, position: u32) -> *mut Sqe {
        let number = position & (self.entries - 1);
        // SAFETY: there are as many.
        unsafe { self.requests.cast::<Sqe>().as_ptr().add(number as usize) }
    }

    #[inline]
    fn completion(&self, position: u32) -> *mut Cqe {
        let number = position & (2 * self.entries - 1);
        // SAFETY: there are as many.
        unsafe { self.completions.cast::<Cqe>().as_ptr().add(number as usize) }
    }
}

/// Entries of zeros, until [`Rings`] are dropped.
fn kept<T: Clone + Default>(count: usize) -> NonNull<[T]> {
    NonNull::from(Box::leak(vec![T::default(); count].into_boxed_slice()))
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: made by `kept`, and nobody has them any more.
        unsafe {
            drop(Box::from_raw(self.requests.as_ptr()));
            drop(Box::from_raw(self.completions.as_ptr()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn cqe(user_data: u64) -> Cqe {
        Cqe {
            user_data,
            ..Cqe::default()
        }
    }

    #[test]
    fn sizes_are_powers_of_two() {
        for bad in [0, 3, MAX_ENTRIES + 1, 2 * MAX_ENTRIES] {
            assert!(Rings::new(bad).is_none());
        }
        assert_eq!(Rings::new(MAX_ENTRIES).unwrap().entries(), MAX_ENTRIES);
    }

    proptest::proptest! {
        /// Against queues that everybody trusts, from any position on.
        #[test]
        fn what_goes_in_comes_out(steps in proptest::collection::vec(0..5_u8, 0..200), from: u32) {
            let mut rings = Rings::new(4).unwrap();
            for position in [&mut rings.sq_head, &mut rings.sq_tail, &mut rings.cq_head, &mut rings.cq_tail, &mut rings.cq_written] {
                *position = from;
            }
            let (mut requests, mut hidden, mut seen) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            for (number, step) in (0..).zip(steps) {
                match step {
                    0 | 1 => {
                        let request = Sqe { user_data: number, ..Sqe::default() };
                        let fits = requests.len() < 4;
                        assert_eq!(rings.prepare(request), fits);
                        requests.extend(fits.then_some(request));
                    }
                    2 if rings.prepared() > 0 && rings.completion_space() > 0 => {
                        let request = rings.first();
                        assert_eq!(Some(request), requests.pop_front());
                        rings.take();
                        rings.complete(cqe(request.user_data));
                        hidden.push_back(cqe(request.user_data));
                    }
                    3 => {
                        rings.revise(&mut |c| c.code += 1);
                        hidden.iter_mut().for_each(|c| c.code += 1);
                        rings.publish();
                        seen.append(&mut hidden);
                    }
                    _ => assert_eq!(rings.reap(), seen.pop_front()),
                }
                assert_eq!(rings.prepared() as usize, requests.len());
                assert_eq!(rings.completed() as usize, seen.len());
                assert_eq!(rings.completion_space() as usize, 8 - seen.len() - hidden.len());
            }
        }

        /// Nothing that a program writes to the public part leads out of the rings.
        #[test]
        fn any_positions_do_no_harm(head: u32, tail: u32, reaped: u32, published: u32) {
            let mut rings = Rings::new(2).unwrap();
            (rings.sq_head, rings.sq_tail) = (head, tail);
            (rings.cq_head, rings.cq_tail) = (reaped, published);
            (rings.sqes, rings.cqes) = (std::ptr::null_mut(), std::ptr::null_mut());
            (rings.sq_mask, rings.cq_mask) = (u32::MAX, u32::MAX);
            for _ in 0..rings.prepared() {
                let _ = rings.first();
                rings.take();
                if rings.completion_space() > 0 {
                    rings.complete(cqe(1));
                }
            }
            rings.revise(&mut |c| c.code = 1);
            rings.publish();
            for _ in 0..10 {
                rings.reap();
            }
            rings.prepare(Sqe::default());
        }
    }
}
