//! The messages of ranks, byte by byte: docs/internals/checkpoints.md, "How ranks meet".

use std::sync::Arc;
use tarn_ports::RankProgress;

/// Bytes of a text: a refusal, a name.
pub(crate) const MAX_TEXT: usize = 4 << 10;
/// Bytes that `put` and `fetch` move at once: the time on the way is little beside that of the bytes.
pub(crate) const PIECE: usize = 4 << 20;
/// Bytes of a medium that a window shows at once: a provider that pins them has to pin so many.
pub(crate) const SHOWN: usize = 64 << 20;
/// Bytes of a request and of its answer: a piece and its description.
pub(crate) const MAX_REQUEST: usize = PIECE + MAX_TEXT;
/// Bytes of all ranks' words of one exchange: the hub has them in memory.
pub(crate) const MAX_WORDS: usize = 1 << 30;

/// A frame as it is sent: the length of the rest, its kind, its fields.
pub(crate) fn frame(kind: u8, fields: &[&[u8]]) -> Arc<[u8]> {
    let len = 1 + fields.iter().map(|f| f.len()).sum::<usize>();
    let mut out = Vec::with_capacity(4 + len);
    // Bounds of words and pieces are far below the largest length.
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.push(kind);
    fields.iter().for_each(|f| out.extend_from_slice(f));
    out.into()
}

/// A text of at most [`MAX_TEXT`] bytes.
pub(crate) fn short(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]
}

/// The rest of a frame's fields.
pub(crate) struct FrameFields<'a>(pub(crate) &'a [u8]);

impl<'a> FrameFields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// All that is left, as a text for people.
    pub(crate) fn text(&mut self) -> String {
        let text = String::from_utf8_lossy(std::mem::take(&mut self.0));
        text.replace(char::is_control, " ")
    }

    fn reached(&mut self) -> Option<RankProgress> {
        Some(RankProgress {
            committed: self.u64()?,
            durable: self.u64()?,
            replicated: self.u64()?,
            missed: self.u64()?,
            bare: self.u64()?,
        })
    }

    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// As it is sent.
fn counts(reached: RankProgress) -> Vec<u8> {
    let counts = reached.counts().into_iter();
    let all = counts.chain([reached.missed, reached.bare]);
    all.flat_map(u64::to_le_bytes).collect()
}

/// How far all are, and the last rank in each count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Least {
    pub(crate) reached: RankProgress,
    /// By [`RankProgress::counts`].
    pub(crate) by: [u32; 3],
}

/// Messages of a member to the hub.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToHub<'a> {
    /// Its word in the exchange of this number, counted from 0.
    Word(u64, &'a [u8]),
    /// How far it is.
    Progress(RankProgress),
    /// It requests the ranks that have not come to an exchange.
    Who(u64),
    /// It ends in order.
    Leave,
}

impl<'a> ToHub<'a> {
    /// Bytes of the longest, without its length.
    pub(crate) const MAX: usize = 9 + tarn_ports::ranks::MAX_WORD;

    pub(crate) fn frame(&self) -> Arc<[u8]> {
        match self {
            Self::Word(number, word) => frame(1, &[&number.to_le_bytes(), word]),
            Self::Progress(r) => frame(2, &[&counts(*r)]),
            Self::Who(number) => frame(3, &[&number.to_le_bytes()]),
            Self::Leave => frame(4, &[]),
        }
    }

    /// `None`: it is no message.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut f = FrameFields(bytes);
        match f.u8()? {
            1 => Some(Self::Word(f.u64()?, f.0)),
            2 => {
                let reached = f.reached()?;
                f.end(Self::Progress(reached))
            }
            3 => {
                let number = f.u64()?;
                f.end(Self::Who(number))
            }
            4 => f.end(Self::Leave),
            _ => None,
        }
    }
}

/// Messages of the hub to a member.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromHub {
    /// Everybody's words in the exchange of this number.
    Words(u64, Vec<Box<[u8]>>),
    /// That exchange cannot be: why.
    No(u64, String),
    /// How far all are.
    Least(Least),
    /// A rank is gone: whether in order, and how that is known.
    Gone(u32, bool, String),
    /// Ranks that have not come to an exchange.
    Missing(u64, String),
}

impl FromHub {
    /// Bytes of the longest, without its length: a million ranks' words.
    pub(crate) const MAX: usize = 9 + MAX_WORDS + (4 << 20);

    /// Everybody's words, which are not copied twice.
    pub(crate) fn words<'a>(number: u64, words: impl Iterator<Item = &'a [u8]>) -> Arc<[u8]> {
        let words: Vec<_> = words.map(|w| ((w.len() as u32).to_le_bytes(), w)).collect();
        let number = number.to_le_bytes();
        let mut fields: Vec<&[u8]> = vec![&number];
        for (len, word) in &words {
            fields.extend([&len[..], word]);
        }
        frame(16, &fields)
    }

    pub(crate) fn frame(&self) -> Arc<[u8]> {
        match self {
            Self::Words(number, words) => Self::words(*number, words.iter().map(AsRef::as_ref)),
            Self::No(number, why) => frame(17, &[&number.to_le_bytes(), short(why)]),
            Self::Least(least) => frame(
                18,
                &[
                    &counts(least.reached),
                    &least.by.map(u32::to_le_bytes).concat(),
                ],
            ),
            Self::Gone(rank, in_order, why) => {
                let in_order = u8::from(*in_order);
                frame(19, &[&rank.to_le_bytes(), &[in_order], short(why)])
            }
            Self::Missing(number, who) => frame(20, &[&number.to_le_bytes(), short(who)]),
        }
    }

    /// `None`: it is no message.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut f = FrameFields(bytes);
        match f.u8()? {
            16 => {
                let number = f.u64()?;
                let mut words = Vec::new();
                while !f.0.is_empty() {
                    let len = f.u32()?;
                    words.push(f.bytes(len as usize)?.into());
                }
                Some(Self::Words(number, words))
            }
            17 => Some(Self::No(f.u64()?, f.text())),
            18 => {
                let least = Least {
                    reached: f.reached()?,
                    by: [f.u32()?, f.u32()?, f.u32()?],
                };
                f.end(Self::Least(least))
            }
            19 => {
                let (rank, in_order) = (f.u32()?, f.u8()?);
                (in_order <= 1).then(|| Self::Gone(rank, in_order == 1, f.text()))
            }
            20 => Some(Self::Missing(f.u64()?, f.text())),
            _ => None,
        }
    }
}

/// A rank's request to another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RankRequest<'a> {
    /// Memory for its staged part: generation, bytes.
    Grant(u64, u64),
    /// To keep bytes there: the generation, the place, the bytes.
    Put(u64, u64, &'a [u8]),
    /// Bytes of a medium: their place, their number, its name.
    Fetch(u64, usize, &'a str),
    /// A window onto the memory of a generation.
    Window(u64),
    /// It writes to that window until the next request: no answer.
    Comes,
    /// It has written there: the generation, the place, the number of bytes.
    Landed(u64, u64, u64),
    /// A window onto bytes of a medium, until the next request: as for a fetch.
    Show(u64, usize, &'a str),
    /// It has read there: no answer.
    Seen,
}

impl<'a> RankRequest<'a> {
    /// Its first bytes as it is sent; the bytes of a `put` follow.
    pub(crate) fn head(&self) -> Vec<u8> {
        let (kind, a, b, rest): (u8, _, _, &[u8]) = match self {
            Self::Grant(generation, bytes) => (1, *generation, *bytes, b""),
            Self::Put(generation, at, _) => (2, *generation, *at, b""),
            Self::Fetch(at, len, medium) => (3, *at, *len as u64, medium.as_bytes()),
            Self::Window(generation) => (4, *generation, 0, b""),
            Self::Comes => (5, 0, 0, b""),
            Self::Landed(generation, at, bytes) => (6, *generation, *at, &bytes.to_le_bytes()),
            Self::Show(at, len, medium) => (7, *at, *len as u64, medium.as_bytes()),
            Self::Seen => (8, 0, 0, b""),
        };
        let len = 17 + rest.len() + self.payload().len();
        let mut out = (len as u32).to_le_bytes().to_vec();
        out.push(kind);
        out.extend_from_slice(&a.to_le_bytes());
        out.extend_from_slice(&b.to_le_bytes());
        out.extend_from_slice(rest);
        out
    }

    /// The bytes that follow the head.
    pub(crate) fn payload(&self) -> &'a [u8] {
        match self {
            Self::Put(_, _, bytes) => bytes,
            _ => b"",
        }
    }

    /// `None`: it is no message.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut f = FrameFields(bytes);
        let (kind, a, b) = (f.u8()?, f.u64()?, f.u64()?);
        let of_medium = |most: usize| {
            let len = usize::try_from(b).ok().filter(|len| *len <= most)?;
            let medium = f.0;
            (medium.len() <= MAX_TEXT).then_some((len, std::str::from_utf8(medium).ok()?))
        };
        match kind {
            1 => f.end(Self::Grant(a, b)),
            2 if f.0.len() <= PIECE => Some(Self::Put(a, b, f.0)),
            3 => of_medium(PIECE).map(|(len, medium)| Self::Fetch(a, len, medium)),
            4 if b == 0 => f.end(Self::Window(a)),
            5 if (a, b) == (0, 0) => f.end(Self::Comes),
            6 => {
                let bytes = f.u64()?;
                f.end(Self::Landed(a, b, bytes))
            }
            7 => of_medium(SHOWN).map(|(len, medium)| Self::Show(a, len, medium)),
            8 if (a, b) == (0, 0) => f.end(Self::Seen),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_sent_is_what_is_received() {
        let reached = RankProgress {
            committed: 7,
            durable: 5,
            replicated: 3,
            missed: 1 << 63,
            bare: 2,
        };
        for message in [
            ToHub::Word(3, b"word"),
            ToHub::Progress(reached),
            ToHub::Who(9),
            ToHub::Leave,
        ] {
            assert_eq!(ToHub::parse(&message.frame()[4..]), Some(message));
        }
        let least = Least {
            reached,
            by: [1, 2, 3],
        };
        for message in [
            FromHub::Words(3, vec![b"a".as_slice().into(), b"".as_slice().into()]),
            FromHub::No(4, "too much".into()),
            FromHub::Least(least),
            FromHub::Gone(3, true, "it has ended".into()),
            FromHub::Missing(5, "rank 3".into()),
        ] {
            assert_eq!(FromHub::parse(&message.frame()[4..]), Some(message));
        }
        for message in [
            RankRequest::Grant(1, 2),
            RankRequest::Put(1, 2, b"bytes"),
            RankRequest::Fetch(1, 2, "3/7.arena"),
            RankRequest::Window(3),
            RankRequest::Comes,
            RankRequest::Landed(1, 2, 3),
            RankRequest::Show(1, SHOWN, "7.buddy"),
            RankRequest::Seen,
        ] {
            let sent = [&message.head(), message.payload()].concat();
            let (len, body) = sent.split_at(4);
            assert_eq!(len, (body.len() as u32).to_le_bytes());
            assert_eq!(RankRequest::parse(body), Some(message));
        }
    }

    #[test]
    fn a_text_that_is_too_long_ends_at_a_letter() {
        let text = "ä".repeat(MAX_TEXT);
        assert_eq!(short(&text).len(), MAX_TEXT);
        assert_eq!(short(&format!("a{text}")).len(), MAX_TEXT - 1);
        assert_eq!(short("no"), b"no");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange_to_be_read(
            kind in 0u8..24,
            rest in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let bytes = [&[kind], &rest[..]].concat();
            if let Some(parsed) = ToHub::parse(&bytes) {
                prop_assert_eq!(&parsed.frame()[4..], &bytes[..]);
            }
            if let Some(parsed) = RankRequest::parse(&bytes) {
                let message = [&parsed.head()[4..], parsed.payload()].concat();
                prop_assert_eq!(&message, &bytes);
            }
            let whole = FromHub::parse(&bytes).is_some();
            // Texts and words may have any length; a message without one is read as it is or not at all.
            prop_assert!(!whole || (16..=20).contains(&kind));
        }
    }
}
