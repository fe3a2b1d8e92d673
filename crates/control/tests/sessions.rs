//! Sessions over real sockets: calls, news, lost and hostile ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tarn_control::{CallError, ControlError, Handler, News, Patience, RunKeys, Server, Session};

const HASTE: Patience = Patience {
    heartbeat: Duration::from_millis(100),
    lost: Duration::from_millis(600),
    connect: Duration::from_secs(5),
};

/// Answers with what it was asked; `sleep` takes long.
#[derive(Default)]
struct Echo {
    news: Mutex<Option<News>>,
    closed: AtomicUsize,
}

impl Handler for Echo {
    fn opened(&self, run: &str, node: &str, news: News) -> Result<Vec<u8>, String> {
        if node == "unknown" {
            return Err("there is no such node here".into());
        }
        *self.news.lock().unwrap() = Some(news);
        Ok(format!("{node} of {run}").into_bytes())
    }

    fn call(&self, request: Vec<u8>) -> Vec<u8> {
        if request == b"sleep" {
            std::thread::sleep(Duration::from_secs(2));
        }
        if request == b"news" {
            let news = self.news.lock().unwrap().clone();
            assert!(news.is_some_and(|n| n.send(vec![7; 3_000_000])));
        }
        request
    }

    fn closed(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn serve(keys: &RunKeys) -> (Server, Arc<Echo>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let echo = Arc::new(Echo::default());
    let handler: Arc<dyn Handler> = Arc::<Echo>::clone(&echo);
    (Server::start(listener, keys, HASTE, handler).unwrap(), echo)
}

fn open(at: SocketAddr, keys: &RunKeys) -> (Session, Receiver<Option<Vec<u8>>>) {
    let (said, heard) = channel();
    let news = move |n| drop(said.send(n));
    (
        Session::open(at, keys, HASTE, "r-1", "node0", news).unwrap(),
        heard,
    )
}

#[test]
fn calls_are_answered_and_news_are_heard() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, heard) = open(server.address(), &keys);
    assert_eq!(session.about(), b"node0 of r-1");
    assert_eq!(session.call(b"hello".to_vec(), None), Ok(b"hello".to_vec()));
    let long = vec![3u8; 9_000_001];
    assert_eq!(session.call(long.clone(), None), Ok(long));
    assert_eq!(session.call(b"news".to_vec(), None), Ok(b"news".to_vec()));
    assert_eq!(heard.recv().unwrap().map(|n| n.len()), Some(3_000_000));
    drop(session);
    assert_eq!(heard.recv().unwrap(), None);
    let began = Instant::now();
    while echo.closed.load(Ordering::SeqCst) == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "the server was not told"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn one_that_is_slow_holds_up_no_other_call() {
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let (session, _heard) = open(server.address(), &keys);
    let began = Instant::now();
    std::thread::scope(|s| {
        let slow = s.spawn(|| session.call(b"sleep".to_vec(), None));
        for i in 0..100u8 {
            assert_eq!(session.call(vec![i], None), Ok(vec![i]));
        }
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "calls waited for the slow one"
        );
        assert_eq!(slow.join().unwrap(), Ok(b"sleep".to_vec()));
    });
    let short = Duration::from_millis(100);
    let late = session.call(b"sleep".to_vec(), Some(short));
    assert_eq!(late, Err(CallError::Late(short)));
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
}

#[test]
fn who_has_other_keys_or_none_is_refused() {
    let (keys, others) = (RunKeys::new().unwrap(), RunKeys::new().unwrap());
    let (server, echo) = serve(&keys);
    let tried = Session::open(server.address(), &others, HASTE, "r-1", "node0", |_| ());
    let why = tried.err().expect("refused").to_string();
    assert!(why.contains("certificate"), "{why}");
    // Without TLS at all.
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    plain.write_all(&[0x5a; 4096]).unwrap();
    let mut answer = Vec::new();
    // An alert and the end, or a reset.
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.len() < 64);
    let (session, _heard) = open(server.address(), &keys);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    assert_eq!(echo.closed.load(Ordering::SeqCst), 0);
}

#[test]
fn a_server_may_refuse_and_say_why() {
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let tried = Session::open(server.address(), &keys, HASTE, "r-1", "unknown", |_| ());
    match tried.err() {
        Some(ControlError::Refused { why, .. }) => assert_eq!(why, "there is no such node here"),
        other => panic!("{other:?}"),
    }
}

/// Passes bytes on, until it is told to be silent; keeps what the client has said.
struct Wire {
    address: SocketAddr,
    silent: Arc<AtomicBool>,
    said: Arc<Mutex<Vec<u8>>>,
}

fn wire(to: SocketAddr) -> Wire {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (silent, said) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (quiet, kept) = (Arc::clone(&silent), Arc::clone(&said));
    std::thread::spawn(move || {
        let Ok((client, _)) = listener.accept() else {
            return;
        };
        let server = TcpStream::connect(to).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream, keep: Option<Arc<Mutex<Vec<u8>>>>| {
            let quiet = Arc::clone(&quiet);
            std::thread::spawn(move || {
                let mut bytes = [0u8; 65536];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    if quiet.load(Ordering::SeqCst) {
                        continue;
                    }
                    if let Some(keep) = &keep {
                        keep.lock().unwrap().extend_from_slice(&bytes[..n]);
                    }
                    if to.write_all(&bytes[..n]).is_err() {
                        return;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Write);
            })
        };
        let up = pass(
            client.try_clone().unwrap(),
            server.try_clone().unwrap(),
            Some(kept),
        );
        let down = pass(server, client, None);
        let _ = (up.join(), down.join());
    });
    Wire {
        address,
        silent,
        said,
    }
}

#[test]
fn an_end_that_falls_silent_is_lost_for_both() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let wire = wire(server.address());
    let (session, heard) = open(wire.address, &keys);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    std::thread::sleep(2 * HASTE.lost);
    assert_eq!(session.over(), None, "heartbeats keep it");
    wire.silent.store(true, Ordering::SeqCst);
    let began = Instant::now();
    // More than may wait to be sent: the caller is let go all the same.
    let lost = session.call(vec![1; 80 << 20], None);
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
    assert!(began.elapsed() < 3 * HASTE.lost);
    assert_eq!(heard.recv().unwrap(), None);
    let after = session.call(b"after".to_vec(), None);
    assert!(matches!(after, Err(CallError::Lost(why)) if why.contains("nothing was heard")));
    std::thread::sleep(HASTE.lost);
    assert_eq!(echo.closed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_recorded_session_is_worth_nothing() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let wire = wire(server.address());
    let (session, _heard) = open(wire.address, &keys);
    assert_eq!(session.call(b"once".to_vec(), None), Ok(b"once".to_vec()));
    drop(session);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(echo.closed.load(Ordering::SeqCst), 1);
    let said = wire.said.lock().unwrap().clone();
    assert!(said.len() > 500, "{} bytes were recorded", said.len());
    let mut again = TcpStream::connect(server.address()).unwrap();
    again
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    again.write_all(&said).unwrap();
    let _ = again.read_to_end(&mut Vec::new());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        echo.closed.load(Ordering::SeqCst),
        1,
        "it opened a second session"
    );
}

#[test]
fn calls_come_from_many_threads() {
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let (session, _heard) = open(server.address(), &keys);
    std::thread::scope(|s| {
        for t in 0..8u32 {
            let session = &session;
            s.spawn(move || {
                for i in 0..200u32 {
                    let request = (t << 16 | i).to_le_bytes().to_vec();
                    assert_eq!(session.call(request.clone(), None), Ok(request));
                }
            });
        }
    });
}
