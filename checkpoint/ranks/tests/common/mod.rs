//! Programs whose ranks are threads of a test.
#![allow(dead_code, reason = "each test program uses some of it")]

mod ports;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tarn_ports::{Ranks, RanksError};
use tarn_ranks::{Meeting, Options};

/// Longer than anything takes that is to come.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The wait for things that are not to come.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// A folder for a program.
pub(crate) fn folder() -> tempfile::TempDir {
    let private = std::fs::Permissions::from_mode(0o700);
    let mut named = tempfile::Builder::new();
    named.permissions(private).tempdir().unwrap()
}

/// A rank of a program on this node.
pub(crate) fn here(folder: &Path, rank: u32, ranks: u32) -> Options {
    Options {
        folder: folder.to_path_buf(),
        rank,
        ranks,
        meet: None,
        node: None,
        switches: None,
        key: None,
        timeout: LONG,
    }
}

/// A rank of a program on two nodes, which are folders: the first half of the ranks is on the first.
pub(crate) fn there(folder: &Path, meet: &str, rank: u32, ranks: u32) -> Options {
    let node = format!("node{}", rank * 2 / ranks);
    Options {
        meet: Some(meet.to_owned()),
        key: Some([7; 32]),
        node: Some(node.clone()),
        ..here(&folder.join(node), rank, ranks)
    }
}

/// An address that nobody has.
pub(crate) fn free_port() -> String {
    format!("127.0.0.1:{}", ports::free_port())
}

/// Lets each do its part on a thread of its own.
pub(crate) fn all<T: Send, R: Send>(of: Vec<T>, part: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = of
            .into_iter()
            .map(|one| scope.spawn(move || part(one)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// All ranks of a program on this node.
pub(crate) fn program(folder: &Path, ranks: u32) -> Vec<Arc<Meeting>> {
    let options = (0..ranks).map(|rank| here(folder, rank, ranks)).collect();
    all(options, |o| Meeting::join(o).unwrap())
}

/// All ranks of a program on two nodes.
pub(crate) fn far_program(folder: &Path, ranks: u32) -> Vec<Arc<Meeting>> {
    far_program_at(folder, &free_port(), ranks)
}

/// The same, rank 0 at this address.
pub(crate) fn far_program_at(folder: &Path, meet: &str, ranks: u32) -> Vec<Arc<Meeting>> {
    let options = (0..ranks).map(|rank| there(folder, meet, rank, ranks));
    all(options.collect(), |o| Meeting::join(o).unwrap())
}

/// The words that every rank got in an exchange of words that name the rank.
pub(crate) fn round(ranks: &[Arc<Meeting>], word: &str) -> Vec<Vec<String>> {
    all(ranks.to_vec(), |r| {
        let word = format!("{word} {}", r.rank());
        texts(r.exchange(word.as_bytes(), LONG).unwrap())
    })
}

pub(crate) fn texts(words: Vec<Box<[u8]>>) -> Vec<String> {
    let text = |w: Box<[u8]>| String::from_utf8(w.into()).unwrap();
    words.into_iter().map(text).collect()
}

/// The rank that is lost, by the error.
pub(crate) fn lost(e: &RanksError) -> &str {
    match e {
        RanksError::Lost { who, .. } => who,
        other => panic!("{other}"),
    }
}

/// Looks until it is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
