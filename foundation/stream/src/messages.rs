//! Messages on a sealed stream, each whole or not at all: `u32` length, little-endian, then so many bytes.

use crate::wire::{Incoming, Outgoing, StreamEnd, halves};
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_types::stream::StreamKeys;

/// Memory is taken as bytes come, at most so many ahead: a length alone costs nothing.
const AHEAD: usize = 1 << 20;

/// How long a message is waited for.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    /// From the call to its last byte.
    Whole(Duration),
    /// For each next byte of it.
    Silence(Duration),
}

/// Both directions of a stream whose ends have these keys.
///
/// # Errors
/// None that can be met; the cipher's own.
pub fn messages(
    socket: TcpStream,
    keys: &StreamKeys,
    end: StreamEnd,
) -> io::Result<(Receiver, Sender)> {
    let (incoming, outgoing) = halves(Arc::new(socket), Some(keys), end)?;
    Ok((Receiver(incoming), Sender(outgoing)))
}

/// The receiving half of a stream.
#[derive(Debug)]
pub struct Receiver(Incoming<Arc<TcpStream>>);

impl Receiver {
    /// The next message. After an error the stream is of no use.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end has closed; `TimedOut`; `InvalidData` when it has more than `most` bytes, or is not what the
    /// other end has sent.
    pub fn receive(&mut self, most: usize, wait: Wait) -> io::Result<Vec<u8>> {
        let until = match wait {
            Wait::Whole(time) => Some(Instant::now() + time),
            Wait::Silence(time) => {
                self.0.socket().set_read_timeout(Some(time))?;
                None
            }
        };
        let mut length = [0; 4];
        self.fill(&mut length, until)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > most {
            let text = format!("a message of {length} bytes, more than {most}");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let mut message = Vec::new();
        while message.len() < length {
            let from = message.len();
            message.resize(length.min(from + AHEAD), 0);
            self.fill(&mut message[from..], until)?;
        }
        Ok(message)
    }

    fn fill(&mut self, mut out: &mut [u8], until: Option<Instant>) -> io::Result<()> {
        while !out.is_empty() {
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                self.0.socket().set_read_timeout(Some(left))?;
            }
            match self.0.read(out) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => out = &mut out[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => match until {
                    // A timeout that ends a moment early.
                    Some(_) => {}
                    None => return Err(ErrorKind::TimedOut.into()),
                },
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// The stream itself: to end it, or to see whether the other end has gone.
    pub fn socket(&self) -> &Arc<TcpStream> {
        self.0.socket()
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct Sender(Outgoing<Arc<TcpStream>>);

impl Sender {
    /// Sends one message, made of these parts. After an error the stream is of no use.
    ///
    /// # Errors
    /// When it has more than 4 GiB, or the other end does not take it within the socket's time for writing.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length);
        let length = length.map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        let mut whole = Vec::with_capacity(4 + length as usize);
        whole.extend_from_slice(&length.to_le_bytes());
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        self.0.send(&whole, false)
    }

    /// The stream itself, to end it.
    pub fn socket(&self) -> &Arc<TcpStream> {
        self.0.socket()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Shutdown, TcpListener};

    const SHORT: Wait = Wait::Whole(Duration::from_millis(50));
    const LONG: Wait = Wait::Silence(Duration::from_secs(60));

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn keys() -> StreamKeys {
        StreamKeys {
            secret: [7; 32],
            to_server: 0,
            to_client: 0,
        }
    }

    fn both() -> [(Receiver, Sender); 2] {
        let (near, far) = pair();
        [
            messages(near, &keys(), StreamEnd::Client).unwrap(),
            messages(far, &keys(), StreamEnd::Server).unwrap(),
        ]
    }

    #[test]
    fn messages_of_any_length_come_back_whole_both_ways() {
        let [(mut near, mut sender), (mut far, mut answer)] = both();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..5 {
                    let received = far.receive(4 << 20, LONG).unwrap();
                    answer.send(&[&received]).unwrap();
                }
            });
            for length in [0, 1, 65_535, 65_537, 3 << 20] {
                let sent: Vec<u8> = (0..length).map(|i| i as u8).collect();
                let (head, tail) = sent.split_at(sent.len() / 3);
                sender.send(&[head, tail]).unwrap();
                assert_eq!(near.receive(4 << 20, LONG).unwrap(), sent);
            }
        });
    }

    #[test]
    fn what_is_late_too_long_or_cut_is_an_error() {
        let [(mut near, _sender), (_far, mut answer)] = both();
        let late = near.receive(8, SHORT).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let silence = Wait::Silence(Duration::from_millis(50));
        let silent = near.receive(8, silence).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        answer.send(&[&[1; 9]]).unwrap();
        let long = near.receive(8, LONG).unwrap_err();
        assert_eq!(long.kind(), ErrorKind::InvalidData);
        let [(mut near, _sender), (_far, mut answer)] = both();
        answer.send(&[b"whole"]).unwrap();
        answer.socket().shutdown(Shutdown::Write).unwrap();
        assert_eq!(near.receive(8, LONG).unwrap(), b"whole");
        let cut = near.receive(8, LONG).unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_somebody_else_says_is_refused() {
        let (near, mut far) = pair();
        let (mut near, _sender) = messages(near, &keys(), StreamEnd::Client).unwrap();
        far.write_all(&[17, 0, 0, 0]).unwrap();
        far.write_all(&[0; 17]).unwrap();
        let forged = near.receive(8, LONG).unwrap_err();
        assert_eq!(forged.kind(), ErrorKind::InvalidData);
        // Nor are sent bytes worth anything the other way.
        let (near, far) = pair();
        let (_, mut sender) = messages(near, &keys(), StreamEnd::Client).unwrap();
        let (mut as_client, _) = messages(far, &keys(), StreamEnd::Client).unwrap();
        sender.send(&[b"mine"]).unwrap();
        let turned = as_client.receive(8, LONG).unwrap_err();
        assert_eq!(turned.kind(), ErrorKind::InvalidData);
    }
}
