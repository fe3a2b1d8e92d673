//! How cache lines of this processor get to memory.

/// Bytes of a cache line, everywhere that matters here.
pub(crate) const LINE: usize = 64;

/// The best instruction that this processor has to write a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Writes it back and keeps it.
    Clwb,
    /// Writes it back and drops it; such flushes pass each other.
    ClflushOpt,
    /// Writes it back and drops it, one after the other.
    Clflush,
    /// None that is known: only the operating system can sync.
    None,
}

impl Flush {
    /// That of this processor.
    pub fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            // Intel SDM volume 2, CPUID: leaf 7, EBX, bits 23 (CLFLUSHOPT) and 24 (CLWB).
            let found = match __cpuid(0).eax >= 7 {
                true => __cpuid_count(7, 0).ebx,
                false => 0,
            };
            match (found & (1 << 24) != 0, found & (1 << 23) != 0) {
                (true, _) => Self::Clwb,
                (_, true) => Self::ClflushOpt,
                _ => Self::Clflush,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::None
    }

    /// Writes the lines of these bytes back. A fence must follow.
    pub(crate) fn lines(self, bytes: &[u8]) {
        // SAFETY: they are there.
        unsafe { self.write_back(bytes.as_ptr(), bytes.len()) };
    }

    /// The same where others may write.
    ///
    /// # Safety
    /// So many bytes are mapped there.
    #[inline]
    pub(crate) unsafe fn write_back(self, start: *const u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::asm;
            let first = start.addr() & !(LINE - 1);
            let end = start.addr() + len;
            for line in (first..end).step_by(LINE) {
                // SAFETY: a line that holds some of these bytes is mapped, and to write it back changes no byte. The instruction is
                // one that the processor has, as `here` has found.
                unsafe {
                    match self {
                        Self::Clwb => {
                            asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                        }
                        Self::ClflushOpt => {
                            asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                        }
                        Self::Clflush => {
                            asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                        }
                        Self::None => {}
                    }
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, len);
    }
}

/// Stores before this, those past the caches and lines that were written back among them, come before what follows.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
