//! The checksum of checkpoints and of the files that hold them: CRC-64/NVME, which processors compute as fast as their first
//! cache gives bytes.

use crc_fast::{CrcAlgorithm, Digest};

const KIND: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// The checksum of some bytes.
pub fn crc(bytes: &[u8]) -> u64 {
    crc_fast::checksum(KIND, bytes)
}

/// The checksum of some bytes and `after` more behind them, of the checksums of both.
pub fn joined(before: u64, behind: u64, after: u64) -> u64 {
    crc_fast::checksum_combine(KIND, before, behind, after)
}

/// A checksum that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Crc(Digest);

impl Crc {
    /// Of nothing so far.
    pub fn new() -> Self {
        Self(Digest::new(KIND))
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of all that was taken.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_of_the_catalogue() {
        // The check value of CRC-64/NVME for these nine digits.
        assert_eq!(crc(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc(b""), 0);
        let mut parts = Crc::new();
        parts.update(b"1234");
        parts.update(b"56789");
        assert_eq!(parts.finish(), crc(b"123456789"));
        assert_eq!(joined(crc(b"1234"), crc(b"56789"), 5), crc(b"123456789"));
        assert_eq!(joined(crc(b"1234"), crc(b""), 0), crc(b"1234"));
        assert_eq!(joined(crc(b""), crc(b"1234"), 4), crc(b"1234"));
    }
}
