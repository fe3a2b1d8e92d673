//! A program of a step that uses a partition: `dealt write|read|add NAME AT [WORD]`, or `dealt watch NAME`, which reads all of it
//! again and again until that fails, and prints `watching` first.

use std::cell::Cell;
use std::error::Error;
use std::path::Path;
use std::time::Duration;
use tarn_partitions::{
    Cqe, Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe,
};

/// Bytes of a word.
const WORD: usize = 16;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Longer than any request takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A partition in use.
struct PartitionClient {
    queue: PartitionQueue,
    cells: &'static [Cell<u8>],
    size: u64,
    memory: u32,
    region: u32,
}

impl PartitionClient {
    fn open(name: &str) -> Result<Self, Box<dyn Error>> {
        let partition = Partition::open(Path::new(name), OpenOptions::default())?;
        let size = partition.size()?;
        let volatile = Options {
            volatile: true,
            ..Options::default()
        };
        let mut queue = PartitionQueue::new(8, volatile)?;
        let cells = Box::leak(vec![Cell::new(0); PIECE].into_boxed_slice());
        Ok(Self {
            memory: queue.register_memory(ProgramMemory::of(cells))?,
            region: queue.register(&partition, 0, size, true)?,
            queue,
            cells,
            size,
        })
    }

    fn does(&mut self, op: Op, offset: u64, length: usize) -> Result<Cqe, Box<dyn Error>> {
        let request = Sqe {
            op: op as u8,
            memory: self.memory,
            storage: self.region,
            address: self.cells.as_ptr().addr() as u64,
            offset,
            length: length as u64,
            operand: 1,
            ..Sqe::default()
        };
        if !self.queue.prepare(request) {
            return Err("the ring is full".into());
        }
        self.queue.wait(1, TIMEOUT)?;
        let done = self.queue.reap().ok_or("no completion")?;
        match done.code {
            0 => Ok(done),
            code => Err(format!("it failed with {code}").into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (does, name) = (words.first().copied(), words.get(1).copied());
    let mut hands = PartitionClient::open(name.ok_or("which partition?")?)?;
    let at = words.get(2).map_or(Ok(0), |at| at.parse())?;
    match does {
        Some("write") => {
            let word = words.get(3).ok_or("which word?")?.bytes();
            let word = word.chain(std::iter::repeat(0)).take(WORD);
            hands.cells.iter().zip(word).for_each(|(c, b)| c.set(b));
            hands.does(Op::Write, at, WORD)?;
        }
        Some("read") => {
            hands.does(Op::Read, at, WORD)?;
            let word: Vec<u8> = hands.cells[..WORD].iter().map(Cell::get).collect();
            let word = String::from_utf8(word)?;
            println!("{} of {}", word.trim_end_matches('\0'), hands.size);
        }
        Some("add") => println!("was {}", hands.does(Op::FetchAdd, at, 8)?.value),
        Some("watch") => {
            let all = usize::try_from(hands.size)?.min(PIECE);
            hands.does(Op::Read, 0, all)?;
            println!("watching");
            loop {
                std::thread::sleep(Duration::from_millis(50));
                hands.does(Op::Read, 0, all)?;
            }
        }
        _ => return Err("write, read, add or watch".into()),
    }
    Ok(())
}
