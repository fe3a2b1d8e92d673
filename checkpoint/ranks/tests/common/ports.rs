//! Ports for the processes that a test starts.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the kernel gives to a request for any port (from 32768 on).
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port that nobody has, and that nobody gets by chance before the program is there that it is for: one that the kernel has given
/// and that was closed again goes to others.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at once begin at different ones.
    let own = std::process::id().wrapping_mul(7919);
    let mut ports = (0..COUNT).map(|_| {
        let at = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        (FIRST + at % COUNT) as u16
    });
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a free port")
}
