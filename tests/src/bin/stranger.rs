//! A process that is of no run and bothers a port of tarnd: `stranger PORT`. Connections that send nothing, garbage, messages
//! that are cut or claim to be huge. Prints a line when its crowd is there, ends with its standard input.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Connections that send nothing.
const CROWD: usize = 500;
/// Between two of those that come.
const PAUSE: Duration = Duration::from_millis(5);

/// The data of the connections that send some.
fn garbage() -> Vec<Vec<u8>> {
    let hello = |version: u16| {
        let versions = [version.to_le_bytes(), version.to_le_bytes()].concat();
        [b"TARNDATA", &versions[..], &[0x5a; 48]].concat()
    };
    // The kind, the version, and a length of which little comes.
    let record = [&[22, 3, 1, 0xff, 0xff][..], &[1; 100]].concat();
    let frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        (0..100_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8)
            .collect(),
        b"TARNDATA".to_vec(),
        hello(1),
        hello(2),
        [hello(2), vec![0xff; 100]].concat(),
        [&hello(2)[..40], &[0; 4]].concat(),
        record,
        [&frames[..], &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0]].concat(),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("which port?")?.parse()?;
    let connect = move || TcpStream::connect(("127.0.0.1", port));
    let mut held = Vec::new();
    for _ in 0..CROWD {
        held.push(connect()?);
    }
    println!("there");
    std::thread::spawn(move || {
        for n in (0..CROWD).cycle() {
            if let Ok(socket) = connect() {
                held[n] = socket;
            }
            std::thread::sleep(PAUSE);
        }
    });
    std::thread::spawn(move || {
        for bytes in garbage().iter().cycle() {
            if let Ok(mut socket) = connect() {
                // It may be cut off in the middle, and need not be answered.
                let _ = socket.write_all(bytes);
                let _ = socket.set_read_timeout(Some(PAUSE));
                let _ = socket.read(&mut [0; 1000]);
            }
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
