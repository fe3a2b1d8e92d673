//! The hash of a file's content: a hash over the hashes of its chunks, so that it does not depend on how
//! the file was split over threads. docs/reference/manifest-format.md says the same.

use tarn_types::hash::Hash;
use twox_hash::XxHash3_128;

/// Bytes of a chunk, the unit that threads share and that a resumed copy is proven by. 16 bytes of hash a MiB
/// keep a file of a TiB at 16 MiB of memory. Changing it changes every file hash.
pub(crate) const CHUNK: usize = 1 << 20;

/// Bytes read, hashed and written at once: they stay in the second-level cache in between. 64 to 128 KiB were
/// the fastest of 64 KiB to 1 MiB; see docs/internals/movers.md.
pub(crate) const PIECE: usize = 128 << 10;

/// Zeros for the holes of sparse files.
pub(crate) static ZEROS: [u8; PIECE] = [0; PIECE];

/// The hash of one chunk.
pub(crate) type ChunkHash = u128;

/// The hash of a chunk's bytes.
pub(crate) fn chunk(bytes: &[u8]) -> ChunkHash {
    XxHash3_128::oneshot(bytes)
}

/// The hash of a chunk that comes in pieces.
pub(crate) struct ChunkHasher(XxHash3_128);

impl ChunkHasher {
    pub(crate) fn new() -> Self {
        Self(XxHash3_128::new())
    }
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }
    pub(crate) fn finish(&self) -> ChunkHash {
        self.0.finish_128()
    }
}

/// Chunks of a file of `size` bytes.
pub(crate) fn chunks(size: u64) -> u64 {
    size.div_ceil(CHUNK as u64)
}

/// Bytes of chunk `at` of a file of `size` bytes.
pub(crate) fn chunk_len(size: u64, at: u64) -> usize {
    size.saturating_sub(at * CHUNK as u64).min(CHUNK as u64) as usize
}

/// The hash of a file from the hashes of its chunks in order, each as 16 bytes, least significant first.
pub(crate) fn file(chunks: &[ChunkHash]) -> Hash {
    if let [one] = chunks {
        return Hash(XxHash3_128::oneshot(&one.to_le_bytes()));
    }
    let mut hasher = XxHash3_128::new();
    for chunk in chunks {
        hasher.write(&chunk.to_le_bytes());
    }
    Hash(hasher.finish_128())
}

/// The hash of content that comes in pieces of any length, in order.
pub struct ContentHasher {
    chunks: Vec<ChunkHash>,
    chunk: ChunkHasher,
    /// Bytes of the chunk that is not whole yet.
    filled: usize,
}

impl Default for ContentHasher {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            chunk: ChunkHasher::new(),
            filled: 0,
        }
    }
}

impl ContentHasher {
    /// More content.
    pub fn update(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let (now, rest) = piece.split_at(piece.len().min(CHUNK - self.filled));
            self.chunk.update(now);
            self.filled += now.len();
            piece = rest;
            if self.filled == CHUNK {
                self.end_chunk();
            }
        }
    }

    fn end_chunk(&mut self) {
        self.chunks.push(self.chunk.finish());
        self.chunk = ChunkHasher::new();
        self.filled = 0;
    }

    /// The hash that a file of this content has in a manifest.
    pub fn finish(mut self) -> Hash {
        if self.filled > 0 {
            self.end_chunk();
        }
        file(&self.chunks)
    }
}

/// The hash of a chunk of `len` zero bytes, for holes.
pub(crate) fn zeros(len: usize) -> ChunkHash {
    static WHOLE: std::sync::OnceLock<ChunkHash> = std::sync::OnceLock::new();
    match len {
        CHUNK => *WHOLE.get_or_init(|| chunk(&vec![0; CHUNK])),
        _ => chunk(&vec![0; len]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, written plainly, with the other implementation of the same hash.
    fn naive(bytes: &[u8]) -> Hash {
        let hashes: Vec<u8> = bytes
            .chunks(CHUNK)
            .flat_map(|c| Hash::of(c).0.to_le_bytes())
            .collect();
        Hash::of(&hashes)
    }

    #[test]
    fn matches_the_definition() {
        let bytes: Vec<u8> = (0..CHUNK * 3 + 17).map(|i| ((i * 31) >> 3) as u8).collect();
        for len in [
            0,
            1,
            16,
            240,
            241,
            4096,
            CHUNK - 1,
            CHUNK,
            CHUNK + 1,
            CHUNK * 2,
            bytes.len(),
        ] {
            let data = &bytes[..len];
            let hashes: Vec<_> = (0..chunks(len as u64))
                .map(|at| {
                    let start = at as usize * CHUNK;
                    chunk(&data[start..start + chunk_len(len as u64, at)])
                })
                .collect();
            assert_eq!(file(&hashes), naive(data), "{len}");
            let mut stream = ContentHasher::default();
            data.chunks(PIECE + 11)
                .for_each(|piece| stream.update(piece));
            assert_eq!(stream.finish(), naive(data), "{len}");
        }
        // The program in docs/reference/manifest-format.md, run with the reference implementation, gives the same.
        let counted: Vec<u8> = (0..CHUNK + 3).map(|i| (i % 251) as u8).collect();
        let ends = [
            (0, "99aa06d3014798d86001c324468d497f"),
            (5, "d41a9004aecbd3f3d48ae647f0af023c"),
        ];
        for (len, hash) in ends
            .into_iter()
            .chain([(CHUNK + 3, "07defc236fe86c6abc7ee823925ad18a")])
        {
            assert_eq!(naive(&counted[..len]).to_string(), hash);
        }
        assert_eq!(zeros(CHUNK), chunk(&[0; CHUNK]));
        assert_eq!(zeros(7), chunk(&[0; 7]));
    }
}
