//! A client that keeps to nothing of the protocol but its beginning.

use crate::nbd::{Client, Fixture, SIZE};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// No answer takes as long: a client that waits so long gets none.
const HANGING: Duration = Duration::from_secs(60);
const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const ZERO: u16 = 6;

/// A connection in the middle of its transmission.
struct Raw(UnixStream);

impl Raw {
    fn new(uri: &str) -> Self {
        let at = uri.split_once("socket=").unwrap().1;
        let mut stream = UnixStream::connect(at).unwrap();
        stream.set_read_timeout(Some(HANGING)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert!(greeting.starts_with(b"NBDMAGIC"));
        // Fixed, without zeros; then the old option for an export, which has but one answer.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend([1u32, 0].map(u32::to_be_bytes).concat());
        stream.write_all(&hello).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        Self(stream)
    }

    fn head(what: u16, offset: u64, length: u32) -> Vec<u8> {
        let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
        head.extend([0, what].map(u16::to_be_bytes).concat());
        head.extend(7u64.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(length.to_be_bytes());
        head
    }

    /// The error that a request gets; none when the connection has been ended instead.
    fn error_of_request(&mut self, what: u16, offset: u64, length: u32) -> Option<u32> {
        self.0.write_all(&Self::head(what, offset, length)).ok()?;
        let mut reply = [0; 16];
        self.0
            .read_exact(&mut reply)
            .map_err(|e| assert_ended(&e))
            .ok()?;
        Some(u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }
}

fn assert_ended(e: &std::io::Error) {
    assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "no answer");
}

/// Requests beyond the end, lengths that are none, clients that go in the middle of a write, and many that say nothing: each gets an error or
/// loses its connection, and another client finds what it has written.
#[test]
fn attack_a_client_that_keeps_to_nothing_harms_no_other() {
    let Some(fixture) = Fixture::new(&["qemu-io"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let mut other = Client::new(&served);
    let line = other.io("write -P 0x21 0 64k");
    assert!(line.contains("wrote"), "{line}");

    let beyond = [
        (READ, SIZE, 1),
        (READ, SIZE - 1, 2),
        (READ, u64::MAX, 4096),
        (READ, u64::MAX - 4095, 4096),
        (READ, 0, u32::MAX),
        (READ, 1 << 63, 4096),
        (TRIM, SIZE - 1, u32::MAX),
        (ZERO, SIZE - 4096, u32::MAX),
        (ZERO, u64::MAX - 1, 2),
        (0x7fff, 0, 4096),
    ];
    for (what, offset, length) in beyond {
        let error = Raw::new(&served.uri).error_of_request(what, offset, length);
        assert_ne!(error, Some(0), "{what} of {length} at {offset:#x}");
    }
    // Many of one client: as many as this test's pipe takes messages about.
    let mut raw = Raw::new(&served.uri);
    for _ in 0..100 {
        assert_ne!(raw.error_of_request(READ, SIZE, 4096), Some(0));
        assert_ne!(raw.error_of_request(READ, SIZE - 1, 2), Some(0));
    }
    // Writes with content: beyond the end, of more than anybody has, and of which only a half comes.
    for (offset, length) in [
        (SIZE - 1, 4096),
        (u64::MAX - 1, 4096),
        (0, u32::MAX),
        (128 << 10, 1 << 20),
    ] {
        let Raw(mut stream) = Raw::new(&served.uri);
        let sent = stream.write_all(&Raw::head(WRITE, offset, length));
        let half = vec![0x66; (length / 2).min(512 << 10) as usize];
        // The server may have ended it.
        let _ = sent.and_then(|()| stream.write_all(&half));
    }
    // And no client at all.
    let at = served.uri.split_once("socket=").unwrap().1;
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(at)).collect();
    let mut garbage = UnixStream::connect(at).unwrap();
    let _ = garbage.write_all(&[0xff; 64 << 10]);

    let text = other.rest("read -P 0x21 0 64k\n");
    assert!(
        text.contains("read 65536") && !text.contains("failed"),
        "{text}"
    );
    drop((silent, garbage));
    served.io(&[
        "read -P 0x21 0 64k",
        "write -P 0x22 64k 4k",
        "read -P 0x22 64k 4k",
        "read -P 0 2M 1M",
    ]);
    assert!(served.is_there());
}
