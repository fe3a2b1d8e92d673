//! Metrics for Prometheus: off unless `site.toml` has `metrics`. docs/admin/site.md, "Metrics".
//!
//! The controller leaves a text here now and then; threads of their own serve it. So a client that is slow, or never reads, holds
//! up nobody but itself.

use super::exposition::text_of;
use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tarn_site::SiteFigures;

/// Clients at a time; more are closed at once.
const MAX_SCRAPERS: usize = 8;
/// Bytes of a request.
const MAX_REQUEST: usize = 8 << 10;
/// For a request and its answer together.
const TIME: Duration = Duration::from_secs(5);
/// Between two texts.
const EVERY: Duration = Duration::from_secs(5);
/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of the kernel's table of connections that are read: some 400,000 of them.
const MAX_TABLE: u64 = 64 << 20;

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MetricsPlace {
    /// A unix socket: who may connect is decided by its mode and group.
    Socket {
        path: PathBuf,
        mode: u32,
        group: Option<u32>,
    },
    /// An address of this host's loopback interface, for root and these users.
    Loopback {
        address: SocketAddr,
        users: Vec<u32>,
    },
}

impl MetricsPlace {
    /// A path that begins with `/`, or a loopback address with a port.
    pub(super) fn parse(
        place: &str,
        mode: Option<&str>,
        group: Option<u32>,
        users: Vec<u32>,
    ) -> anyhow::Result<Self> {
        if place.starts_with('/') {
            ensure!(
                users.is_empty(),
                "`metrics-users` is for a loopback address; a socket has `metrics-mode` and `metrics-group`"
            );
            let mode = mode.unwrap_or("0600");
            let number = u32::from_str_radix(mode, 8).ok().filter(|m| *m <= 0o777);
            let mode = number.with_context(|| {
                format!("metrics-mode: `{mode}` is no mode of a file such as \"0660\"")
            })?;
            return Ok(Self::Socket {
                path: place.into(),
                mode,
                group,
            });
        }
        ensure!(
            mode.is_none() && group.is_none(),
            "`metrics-mode` and `metrics-group` are for a socket; a loopback address has `metrics-users`"
        );
        let address: SocketAddr = place.parse().with_context(|| {
            format!("`{place}` is neither a path such as \"/run/tarn/metrics\" nor an address such as \"127.0.0.1:9411\"")
        })?;
        if !address.ip().is_loopback() {
            bail!("`{place}` can be reached from other hosts: give 127.0.0.1, [::1] or a path");
        }
        Ok(Self::Loopback { address, users })
    }
}

/// The newest text.
type MetricsText = Arc<Mutex<Arc<str>>>;

/// Metrics, if the site wants them.
#[derive(Default)]
pub(super) struct SiteMetrics {
    text: Option<MetricsText>,
    made: Option<Instant>,
}

impl SiteMetrics {
    /// Begins to serve.
    pub(super) fn serve(place: Option<&MetricsPlace>) -> anyhow::Result<Self> {
        let Some(place) = place else {
            return Ok(Self::default());
        };
        let text: MetricsText = Arc::new(Mutex::new("".into()));
        let served = Arc::clone(&text);
        let serve: Box<dyn FnOnce() + Send> = match place {
            MetricsPlace::Socket { path, mode, group } => {
                let listener = listen(path, *mode, *group)?;
                Box::new(move || {
                    accept_all(&served, || Ok(listener.accept()?.0), |_: &UnixStream| true)
                })
            }
            MetricsPlace::Loopback { address, users } => {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("cannot serve metrics at {address}"))?;
                let users = users.clone();
                let may = move |stream: &TcpStream| is_allowed(stream, &users);
                Box::new(move || accept_all(&served, || Ok(listener.accept()?.0), may))
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into());
        thread.spawn(serve).context("cannot start a thread")?;
        Ok(Self {
            text: Some(text),
            made: None,
        })
    }

    /// Makes the text again, if the last one is a while ago.
    pub(super) fn update_if_due(&mut self, figures: impl FnOnce() -> SiteFigures) {
        let Some(text) = &self.text else { return };
        if self.made.is_some_and(|made| made.elapsed() < EVERY) {
            return;
        }
        self.made = Some(Instant::now());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let page = text_of(&figures(), now.map_or(0, |now| now.as_secs()));
        *text.lock().unwrap_or_else(PoisonError::into_inner) = page.into();
    }
}

/// A socket that only its owner can reach until it has its mode.
fn listen(path: &Path, mode: u32, group: Option<u32>) -> anyhow::Result<UnixListener> {
    let about = || format!("cannot serve metrics at {}", path.display());
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => {
            std::fs::remove_file(path).with_context(about)?;
        }
        Ok(_) => bail!(
            "{} is there and no socket: metrics need another place",
            path.display()
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e).with_context(about),
    }
    let listener = bind_closed(path).with_context(about)?;
    if group.is_some() {
        std::os::unix::fs::chown(path, None, group).with_context(about)?;
    }
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).with_context(about)?;
    Ok(listener)
}

/// A socket's file begins with the mode of its descriptor: nobody connects before it has the one that is wanted.
fn bind_closed(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::empty())?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}

/// A stream with limits on the time of each read and write.
trait TimedStream: Read + Write + Send + 'static {
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl TimedStream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl TimedStream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// The place of a client, given back at the end.
struct ScraperSlot(Arc<AtomicUsize>);

impl ScraperSlot {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MAX_SCRAPERS).then_some(slot)
    }
}

impl Drop for ScraperSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept_all<S: TimedStream>(
    text: &MetricsText,
    accept: impl Fn() -> io::Result<S>,
    may: impl Fn(&S) -> bool,
) {
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match accept() {
            Ok(stream) => stream,
            Err(e) => {
                tracing::warn!("nobody gets metrics now: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Some(slot) = ScraperSlot::take(&count) else {
            continue;
        };
        if !may(&stream) {
            continue;
        }
        let text = Arc::clone(&text.lock().unwrap_or_else(PoisonError::into_inner));
        let thread = std::thread::Builder::new().name("scraper".into());
        // Without a thread the connection is closed.
        let _ = thread.spawn(move || {
            if let Err(e) = answer(stream, &text) {
                tracing::debug!("somebody did not get metrics: {e}");
            }
            drop(slot);
        });
    }
}

/// Reads a request and answers it, within [`TIME`].
fn answer(mut stream: impl TimedStream, text: &str) -> io::Result<()> {
    let until = Instant::now() + TIME;
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        stream.limit(left()?)?;
        let count = stream.read(&mut bytes)?;
        request.extend_from_slice(&bytes[..count]);
        if count == 0 || request.len() > MAX_REQUEST {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
    }
    let reply = reply_to(&request, text);
    let mut rest = reply.as_bytes();
    while !rest.is_empty() {
        stream.limit(left()?)?;
        match stream.write(rest)? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            count => rest = &rest[count..],
        }
    }
    stream.flush()
}

fn reply_to(request: &[u8], text: &str) -> String {
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", text),
        ("GET" | "HEAD", _) => ("404 Not Found", "metrics are at /metrics\n"),
        _ => ("405 Method Not Allowed", "metrics are read by GET\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    match method {
        "HEAD" => head,
        _ => head + body,
    }
}

/// Whether the other end of a connection within this host is root's or one of these users'.
fn is_allowed(stream: &TcpStream, users: &[u32]) -> bool {
    let ends = (stream.peer_addr(), stream.local_addr());
    let (Ok(peer), Ok(own)) = ends else {
        return false;
    };
    let path = match peer.ip() {
        IpAddr::V4(_) => "/proc/net/tcp",
        IpAddr::V6(_) => "/proc/net/tcp6",
    };
    let user = File::open(path).and_then(|table| user_of(table, peer, own));
    match user {
        Ok(Some(user)) if user == 0 || users.contains(&user) => true,
        Ok(Some(user)) => {
            tracing::debug!("user {user} gets no metrics: only root and `metrics-users` do");
            false
        }
        Ok(None) => false,
        Err(e) => {
            tracing::warn!(
                "whose a connection for metrics is is not known ({path}: {e}): it is closed"
            );
            false
        }
    }
}

/// The user of the socket `peer` that is connected to `own`, by the kernel's table of connections (proc(5), `/proc/net/tcp`).
fn user_of(table: impl Read, peer: SocketAddr, own: SocketAddr) -> io::Result<Option<u32>> {
    let (peer, own) = (in_table(peer), in_table(own));
    for line in BufReader::new(table.take(MAX_TABLE)).lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, local, remote, _, _, _, _, user, ..] = words[..]
            && local == peer
            && remote == own
        {
            return Ok(user.parse().ok());
        }
    }
    Ok(None)
}

/// An address as the table has it: words of 32 bits in this machine's order, in hexadecimal digits.
fn in_table(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.as_chunks::<4>().0.iter();
    let words: String = words
        .map(|w| format!("{:08X}", u32::from_ne_bytes(*w)))
        .collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(stream: &mut (impl Read + Write)) -> String {
        // A connection beyond the bound is closed.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply
    }

    fn nobody() -> Vec<u32> {
        Vec::new()
    }

    #[test]
    fn places_are_sockets_and_loopback_addresses_only() {
        let parse = |place: &str| MetricsPlace::parse(place, None, None, nobody());
        assert!(matches!(
            parse("/run/m").unwrap(),
            MetricsPlace::Socket { mode: 0o600, .. }
        ));
        assert!(parse("127.0.0.1:9411").is_ok() && parse("[::1]:9411").is_ok());
        for bad in [
            "0.0.0.0:9411",
            "[::]:9411",
            "10.0.0.1:9411",
            "metrics",
            "",
            "127.0.0.1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let of_socket = |mode| MetricsPlace::parse("/m", Some(mode), None, nobody());
        assert!(
            of_socket("0666").is_ok() && of_socket("rw").is_err() && of_socket("7777").is_err()
        );
        assert!(MetricsPlace::parse("[::1]:1", Some("0600"), None, nobody()).is_err());
        assert!(MetricsPlace::parse("/m", None, None, vec![7]).is_err());
    }

    #[test]
    fn a_socket_has_the_mode_that_was_asked_for_and_serves_the_newest_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let place = MetricsPlace::Socket {
            path: path.clone(),
            mode: 0o640,
            group: None,
        };
        let mut metrics = SiteMetrics::serve(Some(&place)).unwrap();
        let closed = bind_closed(&folder.path().join("closed")).unwrap();
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        let before = closed.local_addr().unwrap();
        assert_eq!(mode_of(before.as_pathname().unwrap()) & 0o777, 0);
        let mode = mode_of(&path);
        assert_eq!(mode & 0o777, 0o640);
        let figures = || SiteFigures {
            nodes_up: 42,
            ..SiteFigures::default()
        };
        metrics.update_if_due(figures);
        metrics.update_if_due(|| unreachable!("it was made just now"));
        let reply = get(&mut UnixStream::connect(&path).unwrap());
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        assert!(reply.contains("tarn_nodes{state=\"up\"} 42\n"), "{reply}");
        // Another controller takes over the socket, and nothing else.
        assert!(SiteMetrics::serve(Some(&place)).is_ok());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        assert!(SiteMetrics::serve(Some(&place)).is_err());
    }

    #[test]
    fn clients_that_never_read_or_write_hold_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let place = MetricsPlace::Socket {
            path: path.clone(),
            mode: 0o600,
            group: None,
        };
        let mut metrics = SiteMetrics::serve(Some(&place)).unwrap();
        let silent: Vec<UnixStream> = (0..3 * MAX_SCRAPERS)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        let began = Instant::now();
        metrics.update_if_due(SiteFigures::default);
        assert!(began.elapsed() < Duration::from_secs(1));
        let until = Instant::now() + 4 * TIME;
        // Each has its time, then its place is another's.
        while !get(&mut UnixStream::connect(&path).unwrap()).starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < until, "the silent ones keep their places");
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(silent);
    }

    #[test]
    fn at_a_loopback_address_only_root_and_named_users_get_an_answer() {
        let own = rustix::process::getuid().as_raw();
        for (users, expected) in [(vec![own], true), (vec![], own == 0)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_eq!(is_allowed(&server, &users), expected);
            drop(client);
        }
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:1F91 0100007F:24C3 01 00000000:00000000 00:00000000 00000000  1234        0 7 1\n";
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let user = |peer| user_of(table.as_bytes(), address(peer), address(0x24c3)).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!((user(0x1f91), user(0x1f92)), (Some(1234), None));
        }
    }

    #[test]
    fn other_requests_are_refused() {
        let status = |request: &str| {
            let reply = reply_to(request.as_bytes(), "x 1\n");
            reply.split("\r\n").next().unwrap().to_owned()
        };
        assert_eq!(
            status("GET /metrics?x=1 HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 200 OK"
        );
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(
            status("POST /metrics HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 405 Method Not Allowed"
        );
        assert_eq!(status("\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert!(reply_to(b"HEAD /metrics HTTP/1.1\r\n\r\n", "x 1\n").ends_with("\r\n\r\n"));
    }
}
