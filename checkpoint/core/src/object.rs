//! Objects of a node's store (docs/guide/objects.md): their valid keys, the names of their files, and the content of a file: the
//! data from byte 0 on, their checksums, and a trailer that ends it. docs/reference/formats.md has it byte by byte.

use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::manifest::{CHUNK, MAX_KEY, ObjectPiece};
use tarn_seal::piece::PROOF;
use tarn_types::block::{self, BlockKind, Fields, put_short};

/// Bytes of the block that ends a file.
pub const TRAILER: u64 = 1 << 10;
/// The checksums behind the data begin, and the file ends, at a multiple of this.
const PAGE: u64 = 4 << 10;
/// Bytes of an object: more than any node has, and few enough that no sum of them overflows.
pub const MAX_BYTES: u64 = 1 << 46;
/// Bytes of a program's description of an object: the type and shape of an array need some fifty.
pub const MAX_ABOUT: usize = 255;

/// The suffix of the names of objects' files.
const ENDING: &str = ".obj";
/// Another name of the newest version, for other nodes, which cannot list.
pub const NEWEST: &str = "newest.obj";
/// The prefix of the names of unpublished files.
pub const PART: &str = ".put-";

/// The places of the checksums and the trailer, behind the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectFileLayout {
    /// The checksums of all chunks, and the proofs of sealed ones.
    pub sums: u64,
    /// The trailer.
    pub trailer: u64,
    /// The end.
    pub total: u64,
}

impl ObjectFileLayout {
    /// Of an object of so many bytes, sealed or not; none if they are too many.
    pub fn of(length: u64, sealed: bool) -> Option<Self> {
        if length > MAX_BYTES {
            return None;
        }
        let sums = length.next_multiple_of(PAGE);
        let total =
            (sums + entry(sealed) * ObjectPiece::chunks(length) + TRAILER).next_multiple_of(PAGE);
        Some(Self {
            sums,
            trailer: total - TRAILER,
            total,
        })
    }
}

/// Bytes of a chunk's entry: its checksum, and for a sealed one, whose checksum is that of the ciphertext, its proof.
pub fn entry(sealed: bool) -> u64 {
    match sealed {
        true => 8 + PROOF as u64,
        false => 8,
    }
}

/// The block that ends an object's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trailer {
    /// Random: versions of other stores that have the same key and number have another.
    pub identity: u128,
    /// Its name.
    pub key: Box<str>,
    /// The version's number, from 1 on.
    pub number: u64,
    /// Bytes of data.
    pub length: u64,
    /// The checksum of the chunks' entries.
    pub sum: u64,
    /// The program's description of it.
    pub about: Box<str>,
    /// The key that its data are sealed with, wrapped, if they are.
    pub seal: Option<Box<[u8]>>,
}

impl Trailer {
    /// As it is written.
    ///
    /// # Panics
    /// With a key or a text that is too long, or too many bytes.
    pub fn encode(&self) -> Vec<u8> {
        let sealed = self.seal.is_some();
        let layout = ObjectFileLayout::of(self.length, sealed).expect("a length that was checked");
        let mut payload = Vec::new();
        for number in [self.number, self.length, self.sum] {
            payload.extend(number.to_le_bytes());
        }
        put_short(&mut payload, self.key.as_bytes());
        put_short(&mut payload, self.about.as_bytes());
        if let Some(key) = &self.seal {
            put_short(&mut payload, key);
        }
        let at = layout.trailer;
        block::seal(
            BlockKind::Object,
            self.identity,
            at,
            &payload,
            TRAILER as usize,
        )
    }

    /// The trailer of a file of so many bytes, of which these are the last; none if they are no trailer.
    pub fn decode(last: &[u8], total: u64) -> Option<Self> {
        let at = total.checked_sub(TRAILER)?;
        let (identity, payload) = block::unseal(BlockKind::Object, at, last)?;
        let mut fields = Fields(payload);
        let trailer = Self {
            identity,
            number: fields.u64()?,
            length: fields.u64()?,
            sum: fields.u64()?,
            key: text(fields.short()?)?,
            about: text(fields.short()?)?,
            seal: match fields.0.is_empty() {
                true => None,
                false => Some(fields.short().filter(|key| !key.is_empty())?.into()),
            },
        };
        let sealed = trailer.seal.is_some();
        let fits =
            ObjectFileLayout::of(trailer.length, sealed)?.total == total && fields.0.is_empty();
        (fits && trailer.number > 0 && check_key(&trailer.key).is_ok()).then_some(trailer)
    }
}

fn text(bytes: &[u8]) -> Option<Box<str>> {
    std::str::from_utf8(bytes).ok().map(Box::from)
}

/// Checks a key of an object: its components become folders, which must not be taken for something else, nor
/// lead out of the store.
///
/// # Errors
/// [`CheckpointErrorCode::Invalid`], with the defect.
///
/// # Examples
/// ```
/// use tarn_checkpoint_core::object::check_key;
///
/// assert!(check_key("fields/rho").is_ok());
/// assert!(check_key("../rho").is_err() && check_key("rho.obj").is_err() && check_key("").is_err());
/// ```
pub fn check_key(key: &str) -> Result<(), CheckpointError> {
    let wrong = |what: &str| {
        let text = format!("{key:?} is no key of an object: {what}");
        Err(CheckpointError::new(CheckpointErrorCode::Invalid, text))
    };
    if key.is_empty() || key.len() > MAX_KEY {
        return wrong(&format!("it has 1 to {MAX_KEY} bytes"));
    }
    if key.chars().any(char::is_control) {
        return wrong("it has no control characters");
    }
    let plain = |c: &str| !c.is_empty() && !c.starts_with('.') && !c.ends_with(ENDING);
    match key.split('/').all(plain) {
        true => Ok(()),
        false => {
            wrong("between slashes stand names that begin with no '.' and end with no \".obj\"")
        }
    }
}

/// Checks the text that a program gives an object for its readers.
///
/// # Errors
/// [`CheckpointErrorCode::Invalid`]: it has more than [`MAX_ABOUT`] bytes.
pub fn check_about(about: &str) -> Result<(), CheckpointError> {
    match about.len() {
        0..=MAX_ABOUT => Ok(()),
        bytes => Err(CheckpointError::new(
            CheckpointErrorCode::Invalid,
            format!("the description of an object has at most {MAX_ABOUT} bytes, not {bytes}"),
        )),
    }
}

/// The name of a version's file.
pub fn file(number: u64) -> String {
    format!("{number}{ENDING}")
}

/// The number of the version in a file of this name.
pub fn number(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_suffix(ENDING)?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

/// The chunks of an object, where each begins and ends.
pub fn chunks(length: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..ObjectPiece::chunks(length)).map(move |n| n * CHUNK..length.min((n + 1) * CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trailer(length: u64) -> Trailer {
        Trailer {
            identity: 7,
            key: "fields/rho".into(),
            number: 3,
            length,
            sum: 9,
            about: "<f8 10".into(),
            seal: None,
        }
    }

    #[test]
    fn keys_cannot_leave_the_store_nor_be_taken_for_files() {
        for good in [
            "a",
            "fields/rho",
            "dichte ä",
            "a.b/c..",
            "1",
            &"x".repeat(255),
        ] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        let long = "x".repeat(256);
        for bad in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/.put-1",
            "1.obj",
            "a/1.obj/b",
            "a\nb",
            "a\0",
            &long,
        ] {
            assert_eq!(
                check_key(bad).unwrap_err().code,
                CheckpointErrorCode::Invalid,
                "{bad}"
            );
        }
    }

    #[test]
    fn numbers_have_one_name_each() {
        for n in [1, 10, u64::MAX] {
            assert_eq!(number(file(n).as_bytes()), Some(n));
        }
        for bad in [
            "",
            ".obj",
            "0.obj",
            "01.obj",
            "+1.obj",
            "1",
            "1.objx",
            NEWEST,
            "18446744073709551616.obj",
        ] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn data_begin_at_zero_and_the_trailer_ends_the_file() {
        let of = |length| ObjectFileLayout::of(length, false).unwrap();
        assert_eq!((of(0).sums, of(0).trailer, of(0).total), (0, 3072, 4096));
        assert_eq!((of(1).sums, of(1).total), (4096, 8192));
        let large = of(1 << 30);
        assert_eq!((large.sums, large.total), (1 << 30, (1 << 30) + (36 << 10)));
        assert_eq!(
            chunks(CHUNK + 1).collect::<Vec<_>>(),
            [0..CHUNK, CHUNK..CHUNK + 1]
        );
        assert!(
            ObjectFileLayout::of(MAX_BYTES, true).is_some()
                && ObjectFileLayout::of(MAX_BYTES + 1, false).is_none()
        );
    }

    #[test]
    fn a_trailer_is_of_its_file_only() {
        let own = trailer(5000);
        let total = ObjectFileLayout::of(5000, false).unwrap().total;
        let bytes = own.encode();
        assert_eq!(Trailer::decode(&bytes, total), Some(own));
        assert_eq!(Trailer::decode(&bytes, total + 4096), None);
        assert_eq!(Trailer::decode(&bytes[1..], total), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Trailer::decode(&flipped, total), None, "bit {bit}");
        }
    }

    proptest! {
        /// Any end of a file, also under a right checksum, is a trailer or none.
        #[test]
        fn no_bytes_panic_the_opener(
            payload in proptest::collection::vec(any::<u8>(), 0..900),
            pages in 0u64..5,
            raw in proptest::collection::vec(any::<u8>(), 0..1100),
        ) {
            let total = pages * PAGE;
            prop_assert!(Trailer::decode(&raw, total).is_none());
            let at = total.saturating_sub(TRAILER);
            let sealed = block::seal(BlockKind::Object, 1, at, &payload, TRAILER as usize);
            if let Some(found) = Trailer::decode(&sealed, total) {
                prop_assert_eq!(found.encode(), sealed);
            }
        }

        #[test]
        fn what_is_written_is_read(
            length in 0..MAX_BYTES,
            number in 1u64..,
            about in "\\PC{0,60}",
            key in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..200)),
        ) {
            let seal = key.map(Vec::into_boxed_slice);
            let total = ObjectFileLayout::of(length, seal.is_some()).unwrap().total;
            let own = Trailer { number, about: about.into(), seal, ..trailer(length) };
            prop_assert_eq!(Trailer::decode(&own.encode(), total), Some(own));
        }
    }
}
