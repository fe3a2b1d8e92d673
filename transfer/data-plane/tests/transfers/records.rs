//! The changes that an attacker between two nodes can make to a sealed stream, record by record: each of them is whole and
//! was sealed by the right end.

use crate::common::*;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_data_plane::{ContentTransport, DataClient, DataClientTimeouts, Limits};
use tarn_mover::Trees;
use tarn_ports::{Control, Mover};
use tarn_stream::hello::{Hello, Welcome};
use tarn_stream::records::{LENGTH, Records};
use tarn_types::manifest::{EntryKind, Manifest};

/// Bytes that are sent before the first record. To the server: a hello; a proof. To the client: a welcome with a proof; a
/// verdict.
const HANDSHAKES: [[usize; 2]; 2] = [[Hello::BYTES, 32], [Welcome::BYTES + 32, 1]];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Attack {
    /// It comes after the next one.
    Swapped,
    LeftOut,
    Twice,
    /// The first record of this direction once more, in the place of this one.
    FirstAgain,
    /// One of another stream of the same client, in the same place.
    OfAnotherStream,
    /// The first one of the other direction.
    SentBack,
    /// The stream ends before it, between two records.
    CutBefore,
}

const ATTACKS: [Attack; 7] = [
    Attack::Swapped,
    Attack::LeftOut,
    Attack::Twice,
    Attack::FirstAgain,
    Attack::OfAnotherStream,
    Attack::SentBack,
    Attack::CutBefore,
];

/// Records that went by in each direction, of one stream.
type Gone = [Vec<Vec<u8>>; 2];

/// An attacker in between, who does this to a record of this number and direction of every stream; 0 is the way to the
/// server.
struct Between {
    attack: Option<Attack>,
    way: usize,
    place: usize,
    /// Of an earlier stream.
    earlier: Gone,
    /// Of the last stream that went by.
    seen: Mutex<Gone>,
    /// How often it was done.
    done: Mutex<usize>,
}

impl Between {
    fn record(from: &mut TcpStream) -> Option<Vec<u8>> {
        let mut record = vec![0; LENGTH];
        from.read_exact(&mut record).ok()?;
        let head = *record.first_chunk::<LENGTH>()?;
        record.resize(LENGTH + Records::length(head).ok()?, 0);
        from.read_exact(&mut record[LENGTH..]).ok()?;
        Some(record)
    }

    /// The record that is sent in place of the original; `None` to end the stream.
    fn changed(
        &self,
        (way, at): (usize, usize),
        record: Vec<u8>,
        from: &mut TcpStream,
        first: &[u8],
        gone: &Mutex<Gone>,
    ) -> Option<Vec<Vec<u8>>> {
        let attack = self.attack.filter(|_| (way, at) == (self.way, self.place));
        let Some(attack) = attack else {
            return Some(vec![record]);
        };
        let other = |all: &Gone, way: usize, at: usize| all[way].get(at).cloned();
        let sent = match attack {
            Attack::Swapped => vec![Self::record(from)?, record],
            Attack::LeftOut => Vec::new(),
            Attack::Twice => vec![record.clone(), record],
            Attack::FirstAgain => vec![first.to_vec()],
            Attack::OfAnotherStream => vec![other(&self.earlier, way, at)?],
            Attack::SentBack => vec![other(&gone.lock().unwrap(), 1 - way, 0)?],
            Attack::CutBefore => {
                *self.done.lock().unwrap() += 1;
                return None;
            }
        };
        *self.done.lock().unwrap() += 1;
        Some(sent)
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, way: usize, gone: &Mutex<Gone>) {
        let mut is_passed = |len: usize| {
            let mut begin = vec![0; len];
            from.read_exact(&mut begin).is_ok() && to.write_all(&begin).is_ok()
        };
        if HANDSHAKES[way].into_iter().all(&mut is_passed) {
            let (mut at, mut first) = (0, Vec::new());
            'stream: while let Some(record) = Self::record(&mut from) {
                if at == 0 {
                    first.clone_from(&record);
                }
                gone.lock().unwrap()[way].push(record.clone());
                self.seen.lock().unwrap().clone_from(&gone.lock().unwrap());
                let sent = self.changed((way, at), record, &mut from, &first, gone);
                let Some(sent) = sent else { break };
                for record in sent {
                    if to.write_all(&record).is_err() {
                        break 'stream;
                    }
                }
                at += 1;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

/// A client of `ends` all of whose streams go by the attacker in between.
fn through(ends: &Ends, between: &Arc<Between>) -> Arc<DataClient> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = ends.server.address();
    let between = Arc::clone(between);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            let gone = Arc::new(Mutex::new(Gone::default()));
            for way in [0, 1] {
                let [from, into] = match way {
                    0 => [&client, &server],
                    _ => [&server, &client],
                };
                let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                let (between, gone) = (Arc::clone(&between), Arc::clone(&gone));
                std::thread::spawn(move || between.pass(from, into, way, &gone));
            }
        }
    });
    Arc::new(DataClient {
        address,
        way: ContentTransport::Sealed,
        timeout: DataClientTimeouts {
            stall: Duration::from_secs(3),
            crowded: Duration::from_millis(500),
            ..DataClientTimeouts::default()
        },
        ..client_of(&ends.server)
    })
}

fn without_hashes(mut manifest: Manifest) -> Manifest {
    for entry in &mut manifest.entries {
        if let EntryKind::File { hash, .. } = &mut entry.kind {
            *hash = None;
        }
    }
    manifest
}

fn between(attack: Option<Attack>, (way, place): (usize, usize), earlier: Gone) -> Arc<Between> {
    Arc::new(Between {
        attack,
        way,
        place,
        earlier,
        seen: Mutex::default(),
        done: Mutex::default(),
    })
}

/// Nothing but the stream's own proof could find it: the content has no hashes here.
#[test]
fn attack_records_that_are_swapped_repeated_left_out_or_of_elsewhere_change_nothing() {
    let ends = Ends::by(Limits::default(), ContentTransport::Sealed);
    ends.write("f", &bytes(2 << 20, 1));
    for n in 0..200 {
        ends.write(&format!("small-{n}"), &bytes(100 + n, 5));
    }
    let manifest = without_hashes(ends.manifest());
    let right = model(&ends.from);
    let fetch = |between: &Arc<Between>| {
        let client = through(&ends, between);
        let job = job(vec![remote(&client, manifest.clone())], &ends.to);
        let fetched = Trees::new().with_threads(1).copy(&job, &Control::default());
        match &fetched {
            Ok(_) => {
                assert!(model(&ends.to) == right);
                std::fs::remove_dir_all(&ends.to).unwrap();
            }
            Err(_) => assert!(!ends.to.exists()),
        }
        // The next attempt must not use bytes that have come.
        let _ = std::fs::remove_dir_all(&job.staging);
        let _ = std::fs::remove_file(job.staging.with_extension("staging.progress"));
        fetched
    };
    let nobody = between(None, (0, 0), Gone::default());
    fetch(&nobody).unwrap();
    let earlier = nobody.seen.lock().unwrap().clone();
    let sent = earlier.each_ref().map(Vec::len);
    assert!(sent[0] > 0 && sent[1] > 8, "{sent:?}");
    for way in [0, 1] {
        let places = BTreeSet::from([0, 1, sent[way] / 2, sent[way] - 1]);
        for place in places.into_iter().filter(|place| *place < sent[way]) {
            for attack in ATTACKS {
                let is_none = match attack {
                    // The same bytes are to come anyhow.
                    Attack::FirstAgain => place == 0,
                    // Nothing is read after it.
                    Attack::Swapped | Attack::Twice => place + 1 == sent[way],
                    // Nothing has gone the other way yet.
                    Attack::SentBack => way == 0 && place == 0,
                    Attack::LeftOut | Attack::CutBefore | Attack::OfAnotherStream => false,
                };
                if is_none {
                    continue;
                }
                let between = between(Some(attack), (way, place), earlier.clone());
                let fetched = fetch(&between);
                let done = *between.done.lock().unwrap();
                let about = format!("{attack:?}, way {way}, record {place} of {}", sent[way]);
                assert!(done > 0 || attack == Attack::Swapped, "{about}");
                // Each stream is met at the same place: the bytes after it belong to the next stream.
                assert!(fetched.is_err() || place > 0, "{about}");
            }
        }
    }
    // The server serves others as ever.
    ends.fetch().unwrap();
    assert!(model(&ends.to) == right);
}
