//! The messages of a handshake: fixed sizes, little-endian.

use tarn_types::key::KEY_BYTES;
use tarn_types::stream::{RUN_BYTES, RunId};

/// The first bytes from both ends.
pub const MAGIC: [u8; 8] = *b"TARNDATA";
/// Of the versions that this program speaks, that in which all after the handshake is sent as it is.
pub const CLEAR: u16 = 2;
/// And that in which it is sent in records that are sealed.
pub const SEALED: u16 = 3;
/// In place of a version: none in common.
pub const NO_VERSION: u16 = 0;

/// The first bytes, if there are enough of them.
fn first<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (taken, rest) = bytes.split_at(N);
    let mut all = [0; N];
    all.copy_from_slice(taken);
    (all, rest)
}

fn check(magic: [u8; MAGIC.len()]) -> Result<(), &'static str> {
    match magic {
        MAGIC => Ok(()),
        _ => Err("it is of another protocol"),
    }
}

/// The first message, from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version that it speaks.
    pub lowest: u16,
    /// The highest.
    pub highest: u16,
    /// The run whose key it has.
    pub run: RunId,
    /// New for each connection.
    pub nonce: [u8; KEY_BYTES],
}

impl Hello {
    /// Bytes on the wire.
    pub const BYTES: usize = 8 + 2 + 2 + RUN_BYTES + KEY_BYTES;

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.lowest.to_le_bytes());
        out[10..12].copy_from_slice(&self.highest.to_le_bytes());
        out[12..28].copy_from_slice(&self.run);
        out[28..].copy_from_slice(&self.nonce);
        out
    }

    /// As it was received.
    ///
    /// # Errors
    /// When it is of another protocol, or its versions are in the wrong order.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, &'static str> {
        let (magic, rest) = first(bytes);
        let (lowest, rest) = first(rest);
        let (highest, rest) = first(rest);
        let (run, rest) = first(rest);
        check(magic)?;
        let hello = Self {
            lowest: u16::from_le_bytes(lowest),
            highest: u16::from_le_bytes(highest),
            run,
            nonce: first(rest).0,
        };
        if hello.lowest > hello.highest || hello.lowest == NO_VERSION {
            return Err("its range of versions is empty");
        }
        Ok(hello)
    }

    /// The lowest version that both allow, of a server that allows this one and those above it.
    pub fn version(&self, lowest: u16) -> Option<u16> {
        let version = self.lowest.max(lowest);
        (version <= self.highest.min(SEALED)).then_some(version)
    }
}

/// The server's answer to [`Hello`], without its proof, which follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The version chosen; or [`NO_VERSION`], then it closes.
    pub version: u16,
    /// New for each connection.
    pub nonce: [u8; KEY_BYTES],
}

impl Welcome {
    /// Bytes on the wire.
    pub const BYTES: usize = 8 + 2 + KEY_BYTES;

    /// As it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version.to_le_bytes());
        out[10..].copy_from_slice(&self.nonce);
        out
    }

    /// As it was received.
    ///
    /// # Errors
    /// When it is of another protocol.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, &'static str> {
        let (magic, rest) = first(bytes);
        let (version, rest) = first(rest);
        check(magic)?;
        Ok(Self {
            version: u16::from_le_bytes(version),
            nonce: first(rest).0,
        })
    }
}

/// The server's last word of the handshake, one byte, once the client has proven itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ask.
    Ready,
    /// The server has its bound of streams, and closes; come again later.
    Busy,
}

impl Verdict {
    /// As it is sent.
    pub fn encode(self) -> [u8; 1] {
        [match self {
            Self::Ready => 1,
            Self::Busy => 2,
        }]
    }

    /// As it was received.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode([byte]: [u8; 1]) -> Result<Self, &'static str> {
        match byte {
            1 => Ok(Self::Ready),
            2 => Ok(Self::Busy),
            _ => Err("neither ready nor busy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_come_back(nonce: [u8; KEY_BYTES], run: [u8; RUN_BYTES]) {
            let hello = Hello { lowest: 1, highest: 3, run, nonce };
            prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
            let welcome = Welcome { version: NO_VERSION, nonce };
            prop_assert_eq!(Welcome::decode(&welcome.encode()).unwrap(), welcome);
            for verdict in [Verdict::Ready, Verdict::Busy] {
                prop_assert_eq!(Verdict::decode(verdict.encode()), Ok(verdict));
            }
            prop_assert!(Verdict::decode([0]).is_err());
        }

        #[test]
        fn noise_is_refused(hello: [u8; 32], rest: [u8; 28], welcome: [u8; 32]) {
            let hello = [&hello[..], &rest].concat();
            prop_assert_eq!(Hello::decode(hello.first_chunk().unwrap()), Err("it is of another protocol"));
            let welcome = [&welcome[..], &rest].concat();
            prop_assert!(Welcome::decode(welcome.first_chunk().unwrap()).is_err());
        }
    }

    #[test]
    fn versions_are_agreed_upon() {
        let hello = |lowest, highest| Hello {
            lowest,
            highest,
            run: [0; 16],
            nonce: [0; 32],
        };
        for (offered, lowest, chosen) in [
            ((1, 9), CLEAR, Some(CLEAR)),
            ((1, 9), SEALED, Some(SEALED)),
            ((CLEAR, CLEAR), SEALED, None),
            ((SEALED, SEALED), CLEAR, Some(SEALED)),
            ((SEALED + 1, SEALED + 2), CLEAR, None),
            ((1, 1), CLEAR, None),
        ] {
            assert_eq!(hello(offered.0, offered.1).version(lowest), chosen);
        }
        assert!(Hello::decode(&hello(3, 2).encode()).is_err());
        assert!(Hello::decode(&hello(0, 2).encode()).is_err());
    }
}
