//! Sessions over real sockets: calls, news, lost and hostile ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tarn_sessions::{
    CallError, ControlError, NodeSession, NotificationSender, RunKeys, SessionHandler,
    SessionOpenError, SessionServer, SessionTimeouts, Talk,
};

const HASTE: SessionTimeouts = SessionTimeouts {
    heartbeat: Duration::from_millis(100),
    lost: Duration::from_secs(2),
    connect: Duration::from_secs(10),
};

/// The time that a busy machine may take.
const LONG: Duration = Duration::from_secs(60);

/// Answers with what it was asked; `sleep` takes until it is woken, to be told `block` too.
#[derive(Default)]
struct Echo {
    notifications: Mutex<Option<NotificationSender>>,
    closed: AtomicUsize,
    commands: Mutex<Vec<Vec<u8>>>,
    asleep: AtomicUsize,
    awake: Mutex<bool>,
    woken: Condvar,
}

impl Echo {
    fn wake(&self) {
        *self.awake.lock().unwrap() = true;
        self.woken.notify_all();
    }

    fn sleep(&self) {
        let awake = self.awake.lock().unwrap();
        let asleep = |awake: &mut bool| !*awake;
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let slept = self.woken.wait_timeout_while(awake, LONG, asleep).unwrap();
        assert!(!slept.1.timed_out(), "nobody wakes it");
    }
}

struct Talking(Arc<Echo>);

#[derive(Default, Clone)]
struct Host(Arc<Echo>);

impl SessionHandler for Host {
    fn opened(
        &self,
        run: &str,
        node: &str,
        notifications: NotificationSender,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError> {
        if node == "unknown" {
            return Err(SessionOpenError("there is no such node here".into()));
        }
        *self.0.notifications.lock().unwrap() = Some(notifications);
        let about = format!("{node} of {run}").into_bytes();
        Ok((about, Box::new(Talking(Arc::clone(&self.0)))))
    }
}

impl Talk for Talking {
    fn call(&self, request: Vec<u8>) -> Vec<u8> {
        if request == b"sleep" {
            self.0.sleep();
        }
        assert_ne!(request, b"panic");
        if request == b"news" {
            let notifications = self.0.notifications.lock().unwrap().clone();
            assert!(notifications.is_some_and(|n| n.send(vec![7; 3_000_000])));
        }
        request
    }

    fn handle_command(&self, command: Vec<u8>) {
        if command == b"block" {
            self.0.sleep();
        }
        self.0.commands.lock().unwrap().push(command);
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn serve(keys: &RunKeys) -> (SessionServer, Arc<Echo>) {
    serve_with(keys, HASTE)
}

fn serve_with(keys: &RunKeys, timeouts: SessionTimeouts) -> (SessionServer, Arc<Echo>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let echo = Arc::new(Echo::default());
    let host = Arc::new(Host(Arc::clone(&echo)));
    (
        SessionServer::start(listener, keys, timeouts, host).unwrap(),
        echo,
    )
}

fn open(at: SocketAddr, keys: &RunKeys) -> (NodeSession, Receiver<Option<Vec<u8>>>) {
    open_with(at, keys, HASTE)
}

fn open_with(
    at: SocketAddr,
    keys: &RunKeys,
    timeouts: SessionTimeouts,
) -> (NodeSession, Receiver<Option<Vec<u8>>>) {
    let (sender, notifications) = channel();
    let notify = move |n| drop(sender.send(n));
    (
        NodeSession::open(at, keys, timeouts, "r-1", "node0", notify).unwrap(),
        notifications,
    )
}

#[test]
fn calls_are_answered_and_news_are_heard() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, notifications) = open(server.address(), &keys);
    assert_eq!(session.about(), b"node0 of r-1");
    assert_eq!(session.call(b"hello".to_vec(), None), Ok(b"hello".to_vec()));
    let long = vec![3u8; 9_000_001];
    assert_eq!(session.call(long.clone(), None), Ok(long));
    assert_eq!(session.call(b"news".to_vec(), None), Ok(b"news".to_vec()));
    assert_eq!(
        notifications.recv().unwrap().map(|n| n.len()),
        Some(3_000_000)
    );
    drop(session);
    assert_eq!(notifications.recv().unwrap(), None);
    until("the server was not told", || {
        echo.closed.load(Ordering::SeqCst) > 0
    });
}

#[test]
fn one_that_is_slow_holds_up_no_other_call() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, _notifications) = open(server.address(), &keys);
    std::thread::scope(|s| {
        let slow = s.spawn(|| session.call(b"sleep".to_vec(), None));
        for i in 0..100u8 {
            assert_eq!(session.call(vec![i], None), Ok(vec![i]));
        }
        // No call has waited for the slow one, which is woken only now.
        echo.wake();
        assert_eq!(slow.join().unwrap(), Ok(b"sleep".to_vec()));
    });
    *echo.awake.lock().unwrap() = false;
    let short = Duration::from_millis(100);
    let late = session.call(b"sleep".to_vec(), Some(short));
    assert_eq!(late, Err(CallError::Late(short)));
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    echo.wake();
}

#[test]
fn who_has_other_keys_or_none_is_refused() {
    let (keys, others) = (RunKeys::new().unwrap(), RunKeys::new().unwrap());
    let (server, echo) = serve(&keys);
    let tried = NodeSession::open(server.address(), &others, HASTE, "r-1", "node0", |_| ());
    let why = tried.err().expect("refused").to_string();
    assert!(why.contains("key"), "{why}");
    // Without a handshake.
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    plain.write_all(&[0x5a; 4096]).unwrap();
    let mut answer = Vec::new();
    // The end, or a reset.
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.len() < 64);
    let (session, _notifications) = open(server.address(), &keys);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    assert_eq!(echo.closed.load(Ordering::SeqCst), 0);
}

#[test]
fn a_server_may_refuse_and_say_why() {
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let tried = NodeSession::open(server.address(), &keys, HASTE, "r-1", "unknown", |_| ());
    match tried.err() {
        Some(ControlError::Refused { why, .. }) => assert_eq!(why, "there is no such node here"),
        other => panic!("{other:?}"),
    }
}

/// Passes bytes on, until it is told to be silent or to stall; keeps what the client has said.
struct Wire {
    address: SocketAddr,
    silent: Arc<AtomicBool>,
    /// Nothing is taken from the client.
    stalled: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    recorded: Arc<Mutex<Vec<u8>>>,
}

fn wire(to: SocketAddr) -> Wire {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (silent, recorded) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (quiet, kept) = (Arc::clone(&silent), Arc::clone(&recorded));
    let cut = Arc::new(AtomicBool::new(false));
    let cuts = Arc::clone(&cut);
    let stalled = Arc::new(AtomicBool::new(false));
    let stalls = Arc::clone(&stalled);
    std::thread::spawn(move || {
        let Ok((client, _)) = listener.accept() else {
            return;
        };
        let server = TcpStream::connect(to).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream, keep: Option<Arc<Mutex<Vec<u8>>>>| {
            let (quiet, stalls) = (Arc::clone(&quiet), Arc::clone(&stalls));
            std::thread::spawn(move || {
                let mut bytes = [0u8; 65536];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    while keep.is_some() && stalls.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
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
        let ends = [&client, &server].map(|s| s.try_clone().unwrap());
        let down = pass(server, client, None);
        while !cuts.load(Ordering::SeqCst) && !up.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if cuts.load(Ordering::SeqCst) {
            for end in &ends {
                end.shutdown(std::net::Shutdown::Both).unwrap();
            }
        }
        let _ = (up.join(), down.join());
    });
    Wire {
        address,
        silent,
        stalled,
        cut,
        recorded,
    }
}

#[test]
fn the_deadline_of_a_call_covers_the_time_that_its_request_waits_to_be_sent() {
    let patient = SessionTimeouts {
        lost: LONG,
        ..HASTE
    };
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve_with(&keys, patient);
    let wire = wire(server.address());
    let (session, _notifications) = open_with(wire.address, &keys, patient);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    wire.stalled.store(true, Ordering::SeqCst);
    let (began, short) = (Instant::now(), Duration::from_millis(300));
    // More than sockets and the queue take, and another one behind it.
    for bytes in [100 << 20, 1] {
        let late = session.call(vec![1; bytes], Some(short));
        assert_eq!(late, Err(CallError::Late(short)));
    }
    assert!(began.elapsed() < LONG, "the session was given up first");
    wire.stalled.store(false, Ordering::SeqCst);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    assert_eq!(session.over(), None);
}

#[test]
fn calls_that_take_long_hold_up_neither_commands_nor_heartbeats() {
    const CALLS: usize = 300;
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, _notifications) = open(server.address(), &keys);
    std::thread::scope(|s| {
        let call = || session.call(b"sleep".to_vec(), None);
        let calls: Vec<_> = (0..CALLS).map(|_| s.spawn(call)).collect();
        until("not as many are answered as may be", || {
            echo.asleep.load(Ordering::SeqCst) == 256
        });
        // Longer than silence may last.
        std::thread::sleep(2 * HASTE.lost);
        session.send_command(b"stop".to_vec()).unwrap();
        until("the command was not heard", || {
            !echo.commands.lock().unwrap().is_empty()
        });
        assert_eq!(echo.asleep.load(Ordering::SeqCst), 256, "more at once");
        echo.wake();
        for call in calls {
            assert_eq!(call.join().unwrap(), Ok(b"sleep".to_vec()));
        }
    });
    assert_eq!(session.over(), None);
}

#[test]
fn an_end_that_falls_silent_is_lost_for_both() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let wire = wire(server.address());
    let (session, notifications) = open(wire.address, &keys);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    std::thread::sleep(2 * HASTE.lost);
    assert_eq!(session.over(), None, "heartbeats keep it");
    wire.silent.store(true, Ordering::SeqCst);
    let began = Instant::now();
    // More than may wait to be sent: the caller is let go all the same.
    let lost = session.call(vec![1; 80 << 20], None);
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
    assert!(began.elapsed() < LONG);
    assert_eq!(notifications.recv().unwrap(), None);
    let after = session.call(b"after".to_vec(), None);
    assert!(
        matches!(after, Err(CallError::Lost(why)) if why.contains("nothing came from it for 2 s"))
    );
    until("the server does not lose it", || {
        echo.closed.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn an_end_that_dies_is_called_dead() {
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let wire = wire(server.address());
    let (session, notifications) = open(wire.address, &keys);
    wire.cut.store(true, Ordering::SeqCst);
    assert_eq!(notifications.recv().unwrap(), None);
    let why = session.over().unwrap();
    assert!(why.contains("its tarnd has died"), "{why}");
    // Nobody is there any more.
    let at = server.address();
    drop(server);
    let gone = || NodeSession::open(at, &keys, HASTE, "r-1", "node0", |_| ()).err();
    until("the port is closed", || {
        gone().is_some_and(|e| e.to_string().contains("its tarnd has ended"))
    });
}

/// However its scope ends.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Strangers that say nothing: as many as a machine has descriptors for.
#[test]
fn attack_a_session_opens_and_goes_on_while_two_thousand_strangers_are_silent() {
    const CROWD: usize = 2_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let keys = RunKeys::new().unwrap();
    let (server, _) = serve(&keys);
    let (before, _notifications) = open(server.address(), &keys);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut held: Vec<TcpStream> = (0..CROWD).map(|_| connect()).collect();
    assert_eq!(before.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    let ends = AtomicBool::new(false);
    let (during, _notifications) = std::thread::scope(|s| {
        let _ends = Sets(&ends);
        s.spawn(|| {
            for n in (0..CROWD).cycle() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                held[n] = connect();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let opened = open(server.address(), &keys);
        // The new session has taken the place of the other, and no stranger takes that of either.
        for i in 0..100u8 {
            assert_eq!(opened.0.call(vec![i], None), Ok(vec![i]));
        }
        opened
    });
    assert_eq!(during.over(), None);
    // Strangers' connections on this side are bounded: few of all of them are still open.
    let ports = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let own = format!(":{:04X}", server.address().port());
    let established = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&own)) && fields.nth(1) == Some("01")
    };
    let open = ports.lines().filter(established).count();
    assert!(open < 200, "{open} connections");
}

#[test]
fn a_recorded_session_is_worth_nothing() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let wire = wire(server.address());
    let (session, _notifications) = open(wire.address, &keys);
    assert_eq!(session.call(b"once".to_vec(), None), Ok(b"once".to_vec()));
    drop(session);
    until("it goes", || echo.closed.load(Ordering::SeqCst) == 1);
    let recorded = wire.recorded.lock().unwrap().clone();
    assert!(
        recorded.len() > 100,
        "{} bytes were recorded",
        recorded.len()
    );
    let mut again = TcpStream::connect(server.address()).unwrap();
    again
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    again.write_all(&recorded).unwrap();
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
    let (session, _notifications) = open(server.address(), &keys);
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

fn until(what: &str, mut there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_told_is_heard_in_order() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, _notifications) = open(server.address(), &keys);
    const COUNT: u32 = 20_000;
    let message = |i: u32| {
        // Some take several frames.
        let mut bytes = i.to_le_bytes().to_vec();
        bytes.resize(
            if i.is_multiple_of(4_000) {
                2_500_000
            } else {
                4
            },
            1,
        );
        bytes
    };
    std::thread::scope(|s| {
        let calls = s.spawn(|| {
            for i in 0..200u8 {
                assert_eq!(session.call(vec![i; 10_000], None), Ok(vec![i; 10_000]));
            }
        });
        (0..COUNT).for_each(|i| session.send_command(message(i)).unwrap());
        calls.join().unwrap();
    });
    until("not all was heard", || {
        echo.commands.lock().unwrap().len() == COUNT as usize
    });
    let commands = echo.commands.lock().unwrap();
    assert!(
        (0..COUNT)
            .zip(&*commands)
            .all(|(i, command)| *command == message(i))
    );
}

#[test]
fn one_that_is_slow_to_hear_holds_up_who_tells_and_nobody_else() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, _notifications) = open(server.address(), &keys);
    session.send_command(b"block".to_vec()).unwrap();
    std::thread::scope(|s| {
        // More than may be told ahead.
        let telling = s.spawn(|| {
            (0..2_000).for_each(|_| session.send_command(vec![5; 1 << 10]).unwrap());
        });
        for i in 0..50u8 {
            assert_eq!(session.call(vec![i], None), Ok(vec![i]));
        }
        // Longer than silence may last.
        std::thread::sleep(2 * HASTE.lost);
        assert!(!telling.is_finished(), "all was told ahead");
        echo.wake();
    });
    assert_eq!(session.over(), None, "heartbeats went through");
    until("not all was heard", || {
        echo.commands.lock().unwrap().len() == 2_001
    });
    // A sender that waits is released when the session ends.
    *echo.awake.lock().unwrap() = false;
    session.send_command(b"block".to_vec()).unwrap();
    std::thread::scope(|s| {
        let telling =
            s.spawn(|| (0..10_000).find_map(|_| session.send_command(vec![5; 64 << 10]).err()));
        drop(server);
        assert!(matches!(telling.join().unwrap(), Some(CallError::Lost(_))));
    });
    echo.wake();
}

#[test]
fn a_new_session_takes_the_place_of_one_that_is_half_dead() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let wire = wire(server.address());
    let (old, _) = open(wire.address, &keys);
    old.send_command(b"1".to_vec()).unwrap();
    until("it was not heard", || {
        !echo.commands.lock().unwrap().is_empty()
    });
    wire.silent.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let (new, _notifications) = open(server.address(), &keys);
    assert!(
        began.elapsed() < HASTE.lost,
        "it waited for the old one to be given up"
    );
    assert_eq!(echo.closed.load(Ordering::SeqCst), 1, "the old one is over");
    new.send_command(b"2".to_vec()).unwrap();
    assert_eq!(new.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
    until("it was not heard", || {
        echo.commands.lock().unwrap().len() == 2
    });
    assert_eq!(new.over(), None);
    // One that is refused takes nobody's place.
    assert!(NodeSession::open(server.address(), &keys, HASTE, "r-1", "unknown", |_| ()).is_err());
    assert_eq!(new.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
}

#[test]
fn one_that_panics_ends_its_session() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, _notifications) = open(server.address(), &keys);
    let lost = session.call(b"panic".to_vec(), None);
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
    until("it goes", || echo.closed.load(Ordering::SeqCst) == 1);
    let (session, _notifications) = open(server.address(), &keys);
    assert_eq!(session.call(b"on".to_vec(), None), Ok(b"on".to_vec()));
}

#[test]
fn a_session_can_be_ended_while_others_wait_in_it() {
    let keys = RunKeys::new().unwrap();
    let (server, echo) = serve(&keys);
    let (session, notifications) = open(server.address(), &keys);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| session.call(b"sleep".to_vec(), None));
        until("it sleeps", || echo.asleep.load(Ordering::SeqCst) == 1);
        session.end();
        // While the node is asleep.
        assert!(matches!(waiting.join().unwrap(), Err(CallError::Lost(_))));
        assert_eq!(notifications.recv().unwrap(), None);
        assert_eq!(echo.closed.load(Ordering::SeqCst), 0);
        echo.wake();
    });
    assert!(session.send_command(b"more".to_vec()).is_err());
    // The node hears of it although the session is not dropped, once it has slept.
    until("it goes", || echo.closed.load(Ordering::SeqCst) == 1);
    drop(session);
}
