//! One pass over lines that copies them past the caches and folds them into their checksum, by carry-less multiplications of 256 bits.
//! Folding is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), for
//! CRC-64/NVME, whose bits are reflected: the lowest bit of the first byte has the highest power.

use std::arch::x86_64::*;

/// Lanes that are folded beside each other, so that none waits for its last multiplication.
const LANES: usize = 4;
/// Bytes of a lane.
const LANE: usize = size_of::<__m256i>();
/// Bytes of one step of all lanes.
pub(crate) const STEP: usize = LANES * LANE;
/// Bytes that are fetched from memory ahead: among the best of 0.5 to 8 KiB. Without it copies took about a tenth longer
/// (Zen 3).
const AHEAD: usize = 2 << 10;
/// The polynomial of CRC-64/NVME, reflected.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x to this power, modulo the polynomial, reflected.
const fn power(exponent: usize) -> u64 {
    // x to the power of 0.
    let mut value: u64 = 1 << 63;
    let mut n = 0;
    while n < exponent {
        value = (value >> 1) ^ (POLYNOMIAL * (value & 1));
        n += 1;
    }
    value
}

/// The factors that move 16 bytes so many bytes on: for their first eight, which are 64 powers higher, and for the others. A
/// product of reflected numbers is one power too high.
const fn distance(bytes: usize) -> [u64; 2] {
    [power(bytes * 8 + 63), power(bytes * 8 - 1)]
}

const BY_STEP: [u64; 2] = distance(STEP);
const BY_LANE: [u64; 2] = distance(LANE);
const BY_HALF: [u64; 2] = distance(LANE / 2);

/// Whether this processor can.
pub(crate) fn can() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
}

/// Copies to some places, and returns 16 bytes that have the same checksum as all copied bytes and those before them, whose
/// checksum is given.
///
/// # Safety
/// `len` bytes are at all of them, a multiple of [`STEP`] and not none, and each of `to` is a multiple of a lane. The processor can.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq")]
pub(crate) unsafe fn copy<const N: usize>(
    to: [*mut u8; N],
    from: *const u8,
    len: usize,
    before: u64,
) -> [u8; 16] {
    let by = |[first, last]: [u64; 2]| _mm_set_epi64x(last as i64, first as i64);
    let step = _mm256_broadcastsi128_si256(by(BY_STEP));
    // SAFETY: `at` is less than `len`, of which a step is a part, and a lane is a part of a step.
    let lane = |at: usize, n: usize| unsafe {
        let bytes = _mm256_loadu_si256(from.add(at + n * LANE).cast());
        for to in to {
            _mm256_stream_si256(to.add(at + n * LANE).cast(), bytes);
        }
        bytes
    };
    let mut lanes: [__m256i; LANES] = std::array::from_fn(|n| lane(0, n));
    // A checksum begins with ones, and ends with all bits turned: so this continues from one.
    lanes[0] = _mm256_xor_si256(lanes[0], _mm256_set_epi64x(0, 0, 0, !before as i64));
    for at in (STEP..len).step_by(STEP) {
        for line in (0..STEP).step_by(64) {
            // A hint; it may be of bytes behind the end.
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD + line).cast());
        }
        for (n, folded) in lanes.iter_mut().enumerate() {
            *folded = wide(*folded, step, lane(at, n));
        }
    }
    let [first, rest @ ..] = lanes;
    let by_lane = _mm256_broadcastsi128_si256(by(BY_LANE));
    let all = rest
        .into_iter()
        .fold(first, |folded, next| wide(folded, by_lane, next));
    let (first, last) = (
        _mm256_castsi256_si128(all),
        _mm256_extracti128_si256::<1>(all),
    );
    let low = _mm_clmulepi64_si128::<0x00>(first, by(BY_HALF));
    let high = _mm_clmulepi64_si128::<0x11>(first, by(BY_HALF));
    let all = _mm_xor_si128(_mm_xor_si128(low, high), last);
    // The checksum of these bytes begins with ones once more.
    let all = _mm_xor_si128(all, _mm_set_epi64x(0, !0));
    let mut bytes = [0; 16];
    // SAFETY: there are 16 bytes.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), all) };
    bytes
}

/// Moves each half on by a distance, to the bytes that are there.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn wide(folded: __m256i, distance: __m256i, there: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128::<0x00>(folded, distance);
    let high = _mm256_clmulepi64_epi128::<0x11>(folded, distance);
    _mm256_xor_si256(_mm256_xor_si256(low, high), there)
}
