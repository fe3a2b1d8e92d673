//! The bare contenders: bytes of memory sent, and received into nothing or into files, and nothing else.

use anyhow::ensure;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

/// Bytes of one send or receive: they stay in the second-level cache, as for tarn.
const BLOCK: usize = 256 << 10;

/// Sends each connection as many bytes as it requests, until the process ends.
pub(super) fn send_all(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            // A receiver that goes away is its own affair.
            let _ = send(stream);
        });
    }
}

fn send(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let mut left = u64::from_le_bytes(request);
    let block = vec![0x5a; BLOCK];
    while left > 0 {
        let n = left.min(BLOCK as u64) as usize;
        stream.write_all(&block[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// Receives so many bytes over so many streams; each fills a file of its own where there is a folder for that.
pub(crate) fn receive(
    from: SocketAddr,
    bytes: u64,
    streams: usize,
    into: Option<&Path>,
) -> anyhow::Result<()> {
    if let Some(folder) = into {
        std::fs::create_dir(folder)?;
    }
    let each = bytes / streams as u64;
    let one = &|n: usize| -> std::io::Result<u64> {
        let mut file = into
            .map(|f| File::create(f.join(n.to_string())))
            .transpose()?;
        let mut stream = TcpStream::connect(from)?;
        stream.write_all(&each.to_le_bytes())?;
        let (mut got, mut block) = (0, vec![0; BLOCK]);
        loop {
            match stream.read(&mut block)? {
                0 => return Ok(got),
                n => {
                    got += n as u64;
                    if let Some(file) = &mut file {
                        file.write_all(&block[..n])?;
                    }
                }
            }
        }
    };
    let got = std::thread::scope(|scope| {
        let running: Vec<_> = (0..streams).map(|n| scope.spawn(move || one(n))).collect();
        let ended = running.into_iter().map(|t| t.join().unwrap_or(Ok(0)));
        ended.sum::<std::io::Result<u64>>()
    })?;
    ensure!(got == each * streams as u64, "{got} bytes came");
    Ok(())
}
