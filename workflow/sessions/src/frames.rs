//! Frames: messages of any kind, and long ones cut so that heartbeats get through between their pieces.
//!
//! A frame is a message of the stream: `u8 kind`, then what the kind says; numbers are little-endian. docs/internals/streams.md.

use crate::MAX_MESSAGE;
use std::collections::BTreeMap;

/// Bytes of content of one frame.
const PIECE: usize = 1 << 20;
/// Bytes of a frame: of one with a name, or a piece.
pub(crate) const MAX_FRAME: usize = PIECE + 64;

/// The frames, by their first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The client's first word: `u16` lowest and highest version, `u16` length of the run's name, the names of the run and of the node.
    Hello(SessionHello),
    /// The server takes part: `u16` version, then what the node tells of itself.
    Welcome(u16, Vec<u8>),
    /// The server does not take part, and why.
    Refused(String),
    /// Still here.
    Heartbeat,
    /// Commands of the client have been handled: `u64` messages, `u64` bytes.
    Acknowledged {
        /// So many of its messages.
        messages: u64,
        /// So many bytes of them.
        bytes: u64,
    },
    /// The server ends the session, and why.
    End(String),
    /// Of a message: `u64` number, `u8` whether more of it follows, its bytes.
    Piece(SessionMessageKind, SessionFragment),
}

/// The first message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionHello {
    pub(crate) lowest: u16,
    pub(crate) highest: u16,
    pub(crate) run: String,
    pub(crate) node: String,
}

/// The kinds of messages that may come in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionMessageKind {
    /// Numbered from 1 by the client.
    Request,
    /// With the number of its request.
    Reply,
    /// Sent by the server unasked, numbered from 0.
    Notification,
    /// One way from the client, numbered from 1.
    Command,
}

/// A message, or a piece of one that is too long for one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionFragment {
    pub(crate) number: u64,
    pub(crate) more: bool,
    pub(crate) content: Vec<u8>,
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const HEARTBEAT: u8 = 4;
const ACKNOWLEDGED: u8 = 5;
const REQUEST: u8 = 6;
const REPLY: u8 = 7;
const NOTIFICATION: u8 = 8;
const COMMAND: u8 = 9;
const END: u8 = 10;

impl SessionMessageKind {
    fn byte(self) -> u8 {
        match self {
            Self::Request => REQUEST,
            Self::Reply => REPLY,
            Self::Notification => NOTIFICATION,
            Self::Command => COMMAND,
        }
    }
}

impl Frame {
    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let join = |parts: &[&[u8]]| parts.concat();
        match self {
            Self::Hello(hello) => {
                let run = hello.run.as_bytes();
                // Longer names are no names: the server refuses what is cut.
                let length = u16::try_from(run.len()).unwrap_or(u16::MAX);
                join(&[
                    &[HELLO],
                    &hello.lowest.to_le_bytes(),
                    &hello.highest.to_le_bytes(),
                    &length.to_le_bytes(),
                    run,
                    hello.node.as_bytes(),
                ])
            }
            Self::Welcome(version, about) => join(&[&[WELCOME], &version.to_le_bytes(), about]),
            Self::Refused(why) => join(&[&[REFUSED], why.as_bytes()]),
            Self::End(why) => join(&[&[END], why.as_bytes()]),
            Self::Heartbeat => vec![HEARTBEAT],
            Self::Acknowledged { messages, bytes } => join(&[
                &[ACKNOWLEDGED],
                &messages.to_le_bytes(),
                &bytes.to_le_bytes(),
            ]),
            Self::Piece(kind, piece) => join(&[
                &[kind.byte()],
                &piece.number.to_le_bytes(),
                &[piece.more.into()],
                &piece.content,
            ]),
        }
    }

    /// As it came; `None` if it is no frame.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let kind = match *kind {
            HELLO => {
                let (lowest, rest) = rest.split_first_chunk()?;
                let (highest, rest) = rest.split_first_chunk()?;
                let (length, names) = rest.split_first_chunk()?;
                let (run, node) = names.split_at_checked(u16::from_le_bytes(*length).into())?;
                return Some(Self::Hello(SessionHello {
                    lowest: u16::from_le_bytes(*lowest),
                    highest: u16::from_le_bytes(*highest),
                    run: str::from_utf8(run).ok()?.into(),
                    node: str::from_utf8(node).ok()?.into(),
                }));
            }
            WELCOME => {
                let (version, about) = rest.split_first_chunk()?;
                return Some(Self::Welcome(u16::from_le_bytes(*version), about.into()));
            }
            REFUSED => return Some(Self::Refused(str::from_utf8(rest).ok()?.into())),
            END => return Some(Self::End(str::from_utf8(rest).ok()?.into())),
            HEARTBEAT => return rest.is_empty().then_some(Self::Heartbeat),
            ACKNOWLEDGED => {
                let (messages, rest) = rest.split_first_chunk()?;
                return Some(Self::Acknowledged {
                    messages: u64::from_le_bytes(*messages),
                    bytes: u64::from_le_bytes(rest.try_into().ok()?),
                });
            }
            REQUEST => SessionMessageKind::Request,
            REPLY => SessionMessageKind::Reply,
            NOTIFICATION => SessionMessageKind::Notification,
            COMMAND => SessionMessageKind::Command,
            _ => return None,
        };
        let (number, rest) = rest.split_first_chunk()?;
        let (more, content) = rest.split_first()?;
        let piece = SessionFragment {
            number: u64::from_le_bytes(*number),
            more: match more {
                0 => false,
                1 => true,
                _ => return None,
            },
            content: content.into(),
        };
        Some(Self::Piece(kind, piece))
    }
}

/// A message cut into frames.
pub(crate) fn frames(
    kind: SessionMessageKind,
    number: u64,
    content: Vec<u8>,
) -> impl Iterator<Item = Frame> {
    let count = content.len().div_ceil(PIECE).max(1);
    (0..count).map(move |i| {
        let end = content.len().min((i + 1) * PIECE);
        let piece = SessionFragment {
            number,
            content: content[i * PIECE..end].to_vec(),
            more: i + 1 < count,
        };
        Frame::Piece(kind, piece)
    })
}

/// The other end sends too much of messages that it does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it sends more than {0} bytes in unfinished messages")]
pub(crate) struct TooMuch(usize);

/// Messages of which not all pieces have come.
pub(crate) struct SessionFragmentBuffer {
    begun: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    most: usize,
}

impl Default for SessionFragmentBuffer {
    fn default() -> Self {
        Self::up_to(MAX_MESSAGE)
    }
}

impl SessionFragmentBuffer {
    fn up_to(most: usize) -> Self {
        Self {
            begun: BTreeMap::new(),
            bytes: 0,
            most,
        }
    }

    /// Takes a piece; the whole message if it is the last one.
    ///
    /// # Errors
    /// When the other end sends too much of them.
    pub(crate) fn take(&mut self, piece: SessionFragment) -> Result<Option<Vec<u8>>, TooMuch> {
        self.bytes += piece.content.len();
        if self.bytes > self.most {
            return Err(TooMuch(self.most));
        }
        let begun = self.begun.entry(piece.number).or_default();
        begun.extend_from_slice(&piece.content);
        if piece.more {
            return Ok(None);
        }
        let whole = self.begun.remove(&piece.number).unwrap_or_default();
        self.bytes -= whole.len();
        Ok(Some(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_nothing_else_is_one() {
        let hello = SessionHello {
            lowest: 1,
            highest: 2,
            run: "r-1".into(),
            node: "n".into(),
        };
        let piece = SessionFragment {
            number: 7,
            more: true,
            content: b"some".into(),
        };
        let kinds = [
            SessionMessageKind::Request,
            SessionMessageKind::Reply,
            SessionMessageKind::Notification,
            SessionMessageKind::Command,
        ];
        let pieces = kinds.map(|kind| Frame::Piece(kind, piece.clone()));
        let others = [
            Frame::Hello(hello),
            Frame::Welcome(1, b"about".into()),
            Frame::Refused("no".into()),
            Frame::End("enough".into()),
            Frame::Heartbeat,
            Frame::Acknowledged {
                messages: 3,
                bytes: 1 << 40,
            },
        ];
        for frame in pieces.into_iter().chain(others) {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Some(frame));
        }
        let wrong: [&[u8]; 8] = [
            b"",
            &[0],
            &[11, 1],
            &[HEARTBEAT, 0],
            &[HELLO, 1, 0, 1, 0, 4, 0, b'r'],
            &[ACKNOWLEDGED, 1, 2, 3],
            &[REFUSED, 0xff],
            &[REQUEST, 1, 0, 0, 0, 0, 0, 0, 0, 2, b'x'],
        ];
        for bytes in wrong {
            assert_eq!(Frame::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_message_of_any_length_comes_back_whole() {
        for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE] {
            let content: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut pieces = SessionFragmentBuffer::default();
            let mut whole = None;
            for frame in frames(SessionMessageKind::Request, 7, content.clone()) {
                assert!(whole.is_none(), "only the last piece ends it");
                assert!(frame.encode().len() <= MAX_FRAME);
                let Frame::Piece(SessionMessageKind::Request, piece) = frame else {
                    panic!("another kind")
                };
                whole = pieces.take(piece).expect("pieces");
            }
            assert_eq!(whole, Some(content));
            assert_eq!(pieces.bytes, 0);
        }
    }

    #[test]
    fn unfinished_messages_are_bounded() {
        let mut pieces = SessionFragmentBuffer::up_to(4000);
        let long = |number| SessionFragment {
            number,
            content: vec![0; 1000],
            more: true,
        };
        for number in 0..4 {
            assert_eq!(pieces.take(long(number)), Ok(None));
        }
        assert!(pieces.take(long(4)).is_err());
    }
}
