//! Sealed files and wrapped keys: sealed content comes back, and nothing else does.
//!
//! `TARN_SEALS` asks for more of the damaged files, `make soak` does. A seed decides everything; one that fails is in the message.

use proptest::prelude::*;
use tarn_seal::SealError;
use tarn_seal::file::{self, FileCipher, HEADER, PIECE, TRAILER};
use tarn_seal::ring::{KeyRing, MAX_KEYS, RingError};
use tarn_seal::wrap::{WRAPPED, WrappedKeyOwner, WrappingKey, wrapped_by};
use tarn_types::key::{DataKey, KeyId};
use tarn_types::random::Random;
use zeroize::Zeroizing;

/// Damaged files that are tried, unless `TARN_SEALS` says otherwise.
const SEALS: u64 = 500;

fn key(of: u8) -> DataKey {
    DataKey::new(KeyId([of; 16]), Zeroizing::new([of ^ 0x5a; 32]))
}

fn seal(key: &DataKey, salt: u8, content: &[u8]) -> Vec<u8> {
    let cipher = FileCipher::create(key, [salt; 24], content.len() as u64).unwrap();
    let mut sealed = cipher.header().to_vec();
    for piece in 0..file::pieces(cipher.length()) {
        assert_eq!(sealed.len() as u64, file::offset(piece));
        let start = piece as usize * PIECE;
        let mut buffer = content[start..start + cipher.piece_len(piece)].to_vec();
        buffer.extend_from_slice(&[0; TRAILER]);
        cipher.seal(piece, [salt ^ 1; 8], &mut buffer).unwrap();
        sealed.extend_from_slice(&buffer);
    }
    assert_eq!(Some(sealed.len() as u64), file::sealed_len(cipher.length()));
    assert_eq!(
        file::content_len(sealed.len() as u64),
        Some(cipher.length())
    );
    sealed
}

/// As a reader does it: the header, the length, then every piece.
fn open(key: &DataKey, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
    let (header, _) = sealed
        .split_first_chunk::<HEADER>()
        .ok_or(SealError::Length)?;
    let cipher = FileCipher::open(key, header)?;
    if file::sealed_len(cipher.length()) != Some(sealed.len() as u64) {
        return Err(SealError::Length);
    }
    let mut content = Vec::new();
    for piece in 0..file::pieces(cipher.length()) {
        let start = file::offset(piece) as usize;
        let end = start + cipher.piece_len(piece) + TRAILER;
        let mut buffer = sealed[start..end].to_vec();
        content.extend_from_slice(cipher.open_piece(piece, &mut buffer)?);
    }
    Ok(content)
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.bits() as u8).collect()
}

#[test]
fn what_was_sealed_comes_back_and_is_nowhere_to_be_seen() {
    for len in [
        0,
        1,
        15,
        4096,
        PIECE - 1,
        PIECE,
        PIECE + 1,
        3 * PIECE,
        3 * PIECE + 7,
    ] {
        let content = bytes(len, len as u64);
        let sealed = seal(&key(1), 7, &content);
        assert_eq!(open(&key(1), &sealed).unwrap(), content, "{len}");
        if len >= 4096 {
            let seen = sealed.windows(32).any(|w| w == &content[64..96]);
            assert!(!seen, "{len}");
        }
        assert_ne!(
            sealed[HEADER..],
            seal(&key(1), 8, &content)[HEADER..],
            "a salt of its own"
        );
    }
}

#[test]
fn a_known_key_and_salt_give_known_bytes() {
    // Made by another implementation, written after docs/reference/formats.md.
    let sealed = seal(&key(1), 7, b"tarn");
    let hex: String = sealed.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, KNOWN);
}

const KNOWN: &str = "5441524e5345414c0101110000000000010101010101010101010101010101010707070707070707070707070707070707070707070707070400000000000000\
    e38e46b910c8b9287c8bfda39034bee06481da670606060606060606";

#[test]
fn every_changed_byte_is_found() {
    let sealed = seal(&key(1), 7, b"some content");
    for at in 0..sealed.len() {
        for bit in 0..8 {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << bit;
            assert!(open(&key(1), &changed).is_err(), "bit {bit} of byte {at}");
        }
    }
    for len in 0..sealed.len() {
        assert!(open(&key(1), &sealed[..len]).is_err(), "cut at {len}");
    }
    let longer = [&sealed[..], b"x"].concat();
    assert_eq!(open(&key(1), &longer), Err(SealError::Length));
}

#[test]
fn each_field_of_the_header_is_refused_by_name() {
    let sealed = seal(&key(1), 7, b"some content");
    let with = |at: usize, byte: u8| {
        let mut changed = sealed.clone();
        changed[at] = byte;
        open(&key(1), &changed).unwrap_err()
    };
    assert_eq!(with(0, b'X'), SealError::Unknown);
    assert_eq!(with(8, 2), SealError::Version(2));
    assert_eq!(with(9, 9), SealError::Cipher(9));
    assert!(matches!(with(10, 16), SealError::Header(_)));
    assert!(matches!(with(15, 1), SealError::Header(_)));
    assert_eq!(with(16, 9), SealError::OtherKey);
    assert_eq!(with(32, 9), SealError::Forged(0), "the salt");
    assert_eq!(with(56, 9), SealError::Length);
    assert_eq!(with(63, 0xff), SealError::Length);
}

#[test]
fn pieces_cannot_be_moved_taken_away_or_brought_from_elsewhere() {
    let content = bytes(3 * PIECE, 3);
    let sealed = seal(&key(1), 7, &content);
    let stride = PIECE + TRAILER;
    let piece = |of: &[u8], n: usize| of[HEADER + n * stride..HEADER + (n + 1) * stride].to_vec();
    let put = |n: usize, bytes: &[u8]| {
        let mut changed = sealed.clone();
        changed[HEADER + n * stride..HEADER + (n + 1) * stride].copy_from_slice(bytes);
        changed
    };
    // Swapped, and one twice.
    let mut swapped = put(0, &piece(&sealed, 1));
    swapped[HEADER + stride..HEADER + 2 * stride].copy_from_slice(&piece(&sealed, 0));
    assert_eq!(open(&key(1), &swapped), Err(SealError::Forged(0)));
    assert_eq!(
        open(&key(1), &put(1, &piece(&sealed, 0))),
        Err(SealError::Forged(1))
    );
    // Of another file, of the same key and even the same content.
    let other = seal(&key(1), 8, &content);
    assert_eq!(
        open(&key(1), &put(2, &piece(&other, 2))),
        Err(SealError::Forged(2))
    );
    // Shorter by a whole piece, with a header that says so.
    let mut shorter = sealed[..HEADER + 2 * stride].to_vec();
    shorter[56..64].copy_from_slice(&(2 * PIECE as u64).to_le_bytes());
    assert_eq!(open(&key(1), &shorter), Err(SealError::Forged(0)));
    // Under another file's header.
    let mut header = other[..HEADER].to_vec();
    header.extend_from_slice(&sealed[HEADER..]);
    assert_eq!(open(&key(1), &header), Err(SealError::Forged(0)));
}

#[test]
fn a_piece_that_is_sealed_again_has_another_nonce() {
    let cipher = FileCipher::create(&key(1), [7; 24], 4).unwrap();
    let sealed = |attempt: u8, content: &[u8; 4]| {
        let mut buffer = [content, &[0; TRAILER][..]].concat();
        cipher.seal(0, [attempt; 8], &mut buffer).unwrap();
        buffer
    };
    let (one, two) = (sealed(1, b"tarn"), sealed(2, b"tarn"));
    assert_ne!(one[..4], two[..4]);
    for mut again in [one, two] {
        assert_eq!(cipher.open_piece(0, &mut again).unwrap(), b"tarn");
    }
    let mut wrong = vec![0; 3];
    assert_eq!(cipher.seal(0, [1; 8], &mut wrong), Err(SealError::Length));
    assert_eq!(
        cipher.seal(1, [1; 8], &mut [0; TRAILER]),
        Err(SealError::Length)
    );
}

#[test]
fn another_key_opens_nothing() {
    let sealed = seal(&key(1), 7, b"some content");
    assert_eq!(open(&key(2), &sealed), Err(SealError::OtherKey));
    // Of the same name.
    let other = DataKey::new(key(1).id(), Zeroizing::new([9; 32]));
    assert_eq!(open(&other, &sealed), Err(SealError::Forged(0)));
}

#[test]
fn whatever_is_done_to_a_sealed_file_is_found_or_changed_nothing() {
    let setting = std::env::var("TARN_SEALS").ok();
    let seals = setting.map_or(SEALS, |n| n.parse().expect("TARN_SEALS is a number"));
    let content = bytes(2 * PIECE + 77, 1);
    let whole = seal(&key(1), 7, &content);
    let other = seal(&key(1), 8, &bytes(PIECE + 5, 2));
    let mut found = 0;
    for seed in 0..seals {
        let mut random = Random::new(seed);
        let mut changed = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(changed.len().max(1) as u64) as usize;
            let from = random.below(other.len() as u64) as usize;
            let most = (changed.len() - at).min(other.len() - from);
            let len = random.below(most.max(1) as u64) as usize;
            match random.below(6) {
                0 if at < changed.len() => changed[at] ^= 1 << random.below(8),
                1 => changed.truncate(at),
                2 => changed[at..at + len].copy_from_slice(&other[from..from + len]),
                3 => changed.extend_from_slice(&other[from..from + len]),
                4 if changed.len() > HEADER => {
                    let length = random.below(4 * PIECE as u64);
                    changed[56..64].copy_from_slice(&length.to_le_bytes());
                    if let Some(sealed) = file::sealed_len(length) {
                        changed.resize(sealed as usize, 0);
                    }
                }
                _ => drop(changed.drain(at..at + len)),
            }
        }
        match open(&key(1), &changed) {
            Ok(same) => assert!(same == content, "seed {seed}: other content was taken"),
            Err(_) => found += 1,
        }
    }
    assert!(found > seals / 2, "{found} of {seals}");
}

proptest! {
    #[test]
    fn lengths_agree(content in 0u64..1 << 48) {
        match file::sealed_len(content) {
            Some(sealed) => {
                prop_assert_eq!(file::content_len(sealed), Some(content));
                prop_assert_eq!(file::offset(file::pieces(content) - 1) + (content - (file::pieces(content) - 1) * PIECE as u64) + TRAILER as u64, sealed);
            }
            None => prop_assert!(content > file::MAX_LENGTH),
        }
    }

    #[test]
    fn no_other_length_is_one(sealed in 0u64..1 << 24) {
        if let Some(content) = file::content_len(sealed) {
            prop_assert_eq!(file::sealed_len(content), Some(sealed));
        }
    }

    #[test]
    fn wrapped_keys_take_any_bytes(wrapped in proptest::collection::vec(any::<u8>(), 0..2 * WRAPPED)) {
        let owner = WrappedKeyOwner { uid: 1, dataset: "d", version: "v" };
        prop_assert!(wrapping(1).unwrap(&wrapped, owner).is_err());
    }

    #[test]
    fn files_of_keys_take_any_text(text in "(tarn-key 1 [0-9a-f ]{0,120}\n|\\PC{0,40}\n){0,4}") {
        if let Ok(ring) = KeyRing::parse(&text) {
            let again = KeyRing::parse(&ring.text()).unwrap();
            prop_assert_eq!(again.text(), ring.text());
        }
    }
}

fn wrapping(of: u8) -> WrappingKey {
    WrappingKey::new(KeyId([of; 16]), Zeroizing::new([of; 32]))
}

#[test]
fn a_wrapped_key_is_its_owners_alone() {
    let owner = WrappedKeyOwner {
        uid: 1000,
        dataset: "mesh",
        version: "a.1",
    };
    let wrapped = wrapping(1).wrap(&key(5), owner, [3; 12]).unwrap();
    assert_eq!(wrapped_by(&wrapped), Ok(KeyId([1; 16])));
    let opened = wrapping(1).unwrap(&wrapped, owner).unwrap();
    assert_eq!(
        (opened.id(), opened.secret()),
        (key(5).id(), key(5).secret())
    );
    assert!(!wrapped.windows(8).any(|w| key(5).secret().starts_with(w)));
    let others = [
        WrappedKeyOwner { uid: 1001, ..owner },
        WrappedKeyOwner {
            dataset: "mes",
            ..owner
        },
        WrappedKeyOwner {
            version: "a.2",
            ..owner
        },
        // The same letters, divided elsewhere.
        WrappedKeyOwner {
            dataset: "mesha",
            version: ".1",
            ..owner
        },
    ];
    for other in others {
        let refused = wrapping(1).unwrap(&wrapped, other).map(drop);
        assert_eq!(refused, Err(SealError::Unwrap), "{other:?}");
    }
    assert_eq!(
        wrapping(2).unwrap(&wrapped, owner).map(drop),
        Err(SealError::OtherKey)
    );
    for at in 0..WRAPPED {
        let mut changed = wrapped;
        changed[at] ^= 4;
        assert!(wrapping(1).unwrap(&changed, owner).is_err(), "byte {at}");
        assert!(
            wrapping(1).unwrap(&wrapped[..at], owner).is_err(),
            "cut at {at}"
        );
    }
}

#[test]
fn a_workspace_has_keys_of_its_own_that_say_nothing_of_the_users() {
    let user = KeyRing::new(wrapping(1));
    let [a, b] = ["a-1", "b-2"].map(|w| user.of_workspace(w).unwrap());
    let owner = WrappedKeyOwner {
        uid: 7,
        dataset: "d",
        version: "v",
    };
    let wrapped = a.newest().wrap(&key(3), owner, [5; 12]).unwrap();
    assert_eq!(a.unwrap(&wrapped, owner).unwrap().secret(), key(3).secret());
    // Made again of the same key, they are the same; nobody else has them.
    let again = user.of_workspace("a-1").unwrap();
    assert_eq!(
        again.unwrap(&wrapped, owner).unwrap().secret(),
        key(3).secret()
    );
    let other = KeyRing::new(wrapping(2)).of_workspace("a-1").unwrap();
    for ring in [&user, &b, &other] {
        assert_eq!(
            ring.unwrap(&wrapped, owner).err(),
            Some(SealError::OtherKey)
        );
    }
    let texts = [&user, &a, &b, &other].map(|ring| ring.text().to_string());
    let words =
        |text: &str| -> Vec<String> { text.split(' ').skip(2).map(str::to_owned).collect() };
    for (at, text) in texts.iter().enumerate() {
        for word in words(text) {
            let same = texts.iter().filter(|t| words(t).contains(&word));
            assert_eq!(same.count(), 1, "{at}");
        }
        // As text they go to nodes.
        let read = KeyRing::parse(text).unwrap();
        assert_eq!(read.text(), text.clone().into());
    }
    // HKDF-SHA256 (RFC 5869) of 32 bytes of 1, worked out with another library.
    let known = concat!(
        "tarn-key 1 f7f97618041509583edb4abe117556c7 ",
        "96c45f7271c3cd1a20aba953aff223e2e512019934fa0b456a35508fc6ee0d8b\n"
    );
    assert_eq!(texts[1], known);
}

#[test]
fn keys_are_rotated_and_the_old_ones_still_open() {
    let owner = WrappedKeyOwner {
        uid: 1000,
        dataset: "mesh",
        version: "a.1",
    };
    let mut ring = KeyRing::new(wrapping(1));
    let wrapped = ring.newest().wrap(&key(5), owner, [3; 12]).unwrap();
    ring.rotate(wrapping(2)).unwrap();
    let mut ring = KeyRing::parse(&format!("# mine\n\n{}", &*ring.text())).unwrap();
    assert_eq!(ring.newest().id(), KeyId([2; 16]));
    let opened = ring.unwrap(&wrapped, owner).unwrap();
    let anew = ring.newest().wrap(&opened, owner, [4; 12]).unwrap();
    ring.drop_old();
    assert_eq!(
        ring.unwrap(&wrapped, owner).map(drop),
        Err(SealError::OtherKey)
    );
    assert_eq!(ring.unwrap(&anew, owner).unwrap().secret(), key(5).secret());
    for of in 3..MAX_KEYS as u8 + 2 {
        ring.rotate(wrapping(of)).unwrap();
    }
    assert_eq!(ring.rotate(wrapping(99)), Err(RingError::Many));
    assert!(ring.text().len() <= tarn_seal::ring::MAX_BYTES);
}

#[test]
fn files_of_keys_are_refused_by_line_and_never_quoted() {
    let line = KeyRing::new(wrapping(1)).text().to_string();
    let refused = |text: &str| KeyRing::parse(text).map(drop).unwrap_err();
    assert_eq!(refused(""), RingError::Empty);
    assert_eq!(
        refused(&format!("\n{}", &line[..line.len() - 2])),
        RingError::Line(2)
    );
    assert_eq!(refused(&line.replace("key 1", "key 2")), RingError::Line(1));
    assert_eq!(refused(&line.replace('\n', " more\n")), RingError::Line(1));
    assert_eq!(refused(&format!("{line}{line}")), RingError::Twice(2));
    let mut many = String::new();
    for of in 0..=MAX_KEYS as u8 {
        many.push_str(&KeyRing::new(wrapping(of)).text());
    }
    assert_eq!(refused(&many), RingError::Many);
    let printed = format!("{:?} {:?}", KeyRing::new(wrapping(0x77)), wrapping(0x77));
    assert!(
        !printed.contains(&"77".repeat(20)) && !printed.contains("119"),
        "{printed}"
    );
}

/// Test case 16 of the GCM specification (McGrew and Viega), with the cipher that everything here uses.
#[test]
fn the_cipher_is_the_one_of_the_specification() {
    let unhex = |text: &str| -> Vec<u8> {
        let pairs = text.as_bytes().chunks(2);
        pairs
            .map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap())
            .collect()
    };
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let key = unhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
    let nonce = unhex("cafebabefacedbaddecaf888");
    let mut text = unhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
    );
    let about = Aad::from(unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2"));
    let nonce = Nonce::try_assume_unique_for_key(&nonce).unwrap();
    let tag = key
        .seal_in_place_separate_tag(nonce, about, &mut text)
        .unwrap();
    assert_eq!(
        text,
        unhex(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        )
    );
    assert_eq!(tag.as_ref(), unhex("76fc6ece0f4e1768cddf8853bb2d551b"));
}
