//! The node that has it: requests are read, done, and answered in order.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use tarn_proto::storage::{Answer, Ask, MAX_PIECE, Verb};
use tarn_ring::{Failure, Target};

/// Bytes of answers that are gathered while more requests have come already.
const GATHER: usize = 256 << 10;

/// Serves until the peer closes, or sends what is no request.
pub(crate) fn serve(mut socket: &TcpStream, target: &mut dyn Target) -> io::Result<()> {
    let mut requests = BufReader::with_capacity(GATHER, socket);
    let (mut out, mut piece) = (Vec::with_capacity(GATHER), Vec::new());
    loop {
        let mut head = [0; Ask::BYTES];
        requests.read_exact(&mut head)?;
        let ask = Ask::decode(&head)
            .map_err(|m| io::Error::new(io::ErrorKind::InvalidData, m.to_string()))?;
        if matches!(ask.verb, Verb::Write | Verb::WritePersistent) {
            piece.resize(ask.length as usize, 0);
            requests.read_exact(&mut piece)?;
        }
        done(&ask, &piece, target, &mut out);
        let more = requests.buffer().len() >= Ask::BYTES;
        if !more || out.len() >= GATHER {
            socket.write_all(&out)?;
            out.clear();
            // Large ones are rare where small ones are many.
            out.shrink_to(GATHER.max(MAX_PIECE));
        }
    }
}

/// Does what is asked, and adds the answer.
fn done(ask: &Ask, piece: &[u8], target: &mut dyn Target, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; Answer::BYTES]);
    let result = match ask.verb {
        Verb::Read => {
            let from = out.len();
            out.resize(from + ask.length as usize, 0);
            let read = target.read(ask.at, &mut out[from..]);
            read.map(|()| u64::from(ask.length))
        }
        Verb::Write => written(ask, target.write(ask.at, piece, false)),
        Verb::WritePersistent => written(ask, target.write(ask.at, piece, true)),
        Verb::FetchAdd => target.fetch_add(ask.at, ask.operand),
        Verb::CompareSwap => target.compare_swap(ask.at, ask.expected, ask.operand),
        Verb::Flush => target.flush().map(|()| 0),
        Verb::Size => Ok(target.size()),
        Verb::Hold => {
            let alone = (ask.operand > 0).then_some(ask.operand == 2);
            target.hold(alone).map(|()| 0)
        }
    };
    let answer = match result {
        Ok(value) => Answer { code: 0, value },
        Err(why) => {
            out.truncate(begin + Answer::BYTES);
            Answer {
                code: why.code().unsigned_abs(),
                value: 0,
            }
        }
    };
    out[begin..begin + Answer::BYTES].copy_from_slice(&answer.encode());
}

fn written(ask: &Ask, result: Result<(), Failure>) -> Result<u64, Failure> {
    result.map(|()| u64::from(ask.length))
}
