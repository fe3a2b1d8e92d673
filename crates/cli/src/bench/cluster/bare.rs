//! The bare contender: bytes of memory sent and received, and nothing else.

use anyhow::ensure;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Bytes of one send or receive: they stay in the second-level cache, as for tarn.
const BLOCK: usize = 256 << 10;

/// Sends each connection as many bytes as it asks for, until the process ends.
pub(super) fn send_all(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            // A receiver that goes away is its own affair.
            let _ = send(stream);
        });
    }
}

fn send(mut stream: TcpStream) -> std::io::Result<()> {
    let mut asked = [0; 8];
    stream.read_exact(&mut asked)?;
    let mut left = u64::from_le_bytes(asked);
    let block = vec![0x5a; BLOCK];
    while left > 0 {
        let n = left.min(BLOCK as u64) as usize;
        stream.write_all(&block[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// Receives so many bytes over so many streams.
pub(super) fn receive(from: SocketAddr, bytes: u64, streams: usize) -> anyhow::Result<()> {
    let each = bytes / streams as u64;
    let got = std::thread::scope(|scope| {
        let one = move || -> std::io::Result<u64> {
            let mut stream = TcpStream::connect(from)?;
            stream.write_all(&each.to_le_bytes())?;
            let (mut got, mut block) = (0, vec![0; BLOCK]);
            loop {
                match stream.read(&mut block)? {
                    0 => return Ok(got),
                    n => got += n as u64,
                }
            }
        };
        let running: Vec<_> = (0..streams).map(|_| scope.spawn(one)).collect();
        let ended = running.into_iter().map(|t| t.join().unwrap_or(Ok(0)));
        ended.sum::<std::io::Result<u64>>()
    })?;
    ensure!(got == each * streams as u64, "{got} bytes came");
    Ok(())
}
