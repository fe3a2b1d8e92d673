//! Sessions, begun with real munge daemons.

mod munged;

use munged::Daemon;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tarn_munge::{
    Munge, MungeError, MungeSessionReader, MungeSessionWriter, SecretBytes, SessionError, accept,
    open,
};
use tarn_proto::site::{Greeting, MAX_FRAME};
use tarn_stream::records::OVERHEAD;

const SOON: Duration = Duration::from_secs(20);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn me() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

fn greeting(epoch: u64) -> Greeting {
    Greeting {
        oldest: 1,
        newest: 1,
        epoch,
        pieces: true,
    }
}

type Halves = (MungeSessionReader, MungeSessionWriter);

fn begun(munge: &Munge) -> (Halves, Halves) {
    let (near, far) = pair();
    let other = munge.clone();
    let node = thread::spawn(move || accept(far, "n1", me(), &other).unwrap());
    let secrets = [7, 8, 9].map(|byte| SecretBytes::new([byte; 32]));
    let controller = open(near, "n1", me(), &secrets, munge).unwrap();
    let (reader, writer, received) = node.join().unwrap();
    assert_eq!(received, secrets);
    (controller, (reader, writer))
}

#[test]
fn both_sides_hear_what_the_other_says() {
    let Some(daemon) = Daemon::start(1) else {
        return;
    };
    let ((mut from_node, mut to_node), (mut reader, mut writer)) = begun(&daemon.munge());
    for epoch in 0..3 {
        to_node.send(&greeting(epoch)).unwrap();
        assert_eq!(reader.receive::<Greeting>(SOON).unwrap(), greeting(epoch));
        writer.send(&greeting(epoch + 10)).unwrap();
        assert_eq!(
            from_node.receive::<Greeting>(SOON).unwrap(),
            greeting(epoch + 10)
        );
    }
    let none = reader.receive::<Greeting>(Duration::from_millis(20));
    assert!(matches!(none, Err(SessionError::Io(_))), "{none:?}");
}

/// A node's error for a credential that was made so for its nonce.
fn judged(daemon: &Daemon, made: impl FnOnce([u8; 32]) -> Vec<u8>) -> SessionError {
    let (mut near, far) = pair();
    let munge = daemon.munge();
    let node = thread::spawn(move || accept(far, "n1", me(), &munge));
    let mut hello = [0; 40];
    near.read_exact(&mut hello).unwrap();
    let credential = made(hello[8..].try_into().unwrap());
    let length = (credential.len() as u32).to_le_bytes();
    near.write_all(&length).unwrap();
    let _ = near.write_all(&credential);
    node.join().unwrap().map(|_| "a session").unwrap_err()
}

fn payload(nonce: [u8; 32], node: &str) -> Vec<u8> {
    [
        &b"tarn site 3\0"[..],
        &nonce,
        &[1; 32],
        &[1],
        &[2; 32],
        node.as_bytes(),
    ]
    .concat()
}

#[test]
fn attack_a_forged_credential_is_refused() {
    let Some(daemon) = Daemon::start(2) else {
        return;
    };
    let forged = |nonce| {
        let true_one = daemon.munge().encode(&payload(nonce, "n1"), me()).unwrap();
        let mut bytes = true_one.into_bytes();
        let middle = bytes.len() / 2;
        bytes[middle] = if bytes[middle] == b'A' { b'B' } else { b'A' };
        bytes
    };
    let why = judged(&daemon, forged);
    assert!(
        matches!(why, SessionError::Munge(MungeError::Refused(_))),
        "{why}"
    );
}

#[test]
fn attack_a_credential_of_another_key_is_refused() {
    let (Some(daemon), Some(other)) = (Daemon::start(3), Daemon::start(4)) else {
        return;
    };
    let strange = |nonce| {
        other
            .munge()
            .encode(&payload(nonce, "n1"), me())
            .unwrap()
            .into_bytes()
    };
    let why = judged(&daemon, strange);
    assert!(
        matches!(why, SessionError::Munge(MungeError::Refused(_))),
        "{why}"
    );
}

#[test]
fn attack_a_credential_is_of_use_once() {
    let Some(daemon) = Daemon::start(5) else {
        return;
    };
    let munge = daemon.munge();
    let credential = munge.encode(b"hello", me()).unwrap();
    munge.decode(credential.as_bytes()).unwrap();
    let again = munge.decode(credential.as_bytes());
    assert!(matches!(again, Err(MungeError::Refused(_))), "{again:?}");
}

#[test]
fn attack_a_credential_that_was_heard_on_another_session_is_refused() {
    let Some(daemon) = Daemon::start(6) else {
        return;
    };
    let old = daemon
        .munge()
        .encode(&payload([9; 32], "n1"), me())
        .unwrap();
    let why = judged(&daemon, |_| old.into_bytes());
    assert!(why.to_string().contains("a replay"), "{why}");
}

#[test]
fn attack_a_credential_for_another_node_is_refused() {
    let Some(daemon) = Daemon::start(7) else {
        return;
    };
    let other = |nonce| {
        daemon
            .munge()
            .encode(&payload(nonce, "n2"), me())
            .unwrap()
            .into_bytes()
    };
    let why = judged(&daemon, other);
    assert!(why.to_string().contains("for node `n2`"), "{why}");
}

#[test]
fn attack_a_credential_of_another_user_is_refused() {
    let Some(daemon) = Daemon::start(8) else {
        return;
    };
    if me() != 0 {
        println!("SKIPPED: only root can speak as another user");
        return;
    }
    let as_nobody = |nonce: [u8; 32]| {
        let socket = daemon.folder().join("socket");
        let open = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(daemon.folder(), open(0o755)).unwrap();
        let mut munge = Command::new("setpriv")
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "munge",
            ])
            .arg("--socket")
            .arg(socket)
            .args(["--restrict-uid", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        munge
            .stdin
            .take()
            .unwrap()
            .write_all(&payload(nonce, "n1"))
            .unwrap();
        munge
            .wait_with_output()
            .unwrap()
            .stdout
            .trim_ascii()
            .to_vec()
    };
    let why = judged(&daemon, as_nobody);
    assert!(why.to_string().contains("user 65534 may not"), "{why}");
}

#[test]
fn attack_a_credential_for_something_else_is_refused() {
    let Some(daemon) = Daemon::start(9) else {
        return;
    };
    let other = |_| {
        daemon
            .munge()
            .encode(b"a job's", me())
            .unwrap()
            .into_bytes()
    };
    assert!(matches!(judged(&daemon, other), SessionError::Broken(_)));
}

#[test]
fn attack_a_credential_without_end_is_refused() {
    let Some(daemon) = Daemon::start(10) else {
        return;
    };
    let why = judged(&daemon, |_| vec![b'x'; 1 << 20]);
    assert!(matches!(why, SessionError::Broken(_)), "{why}");
}

#[test]
fn attack_what_is_changed_repeated_or_turned_round_on_the_way_ends_the_session() {
    let Some(daemon) = Daemon::start(11) else {
        return;
    };
    // A relay between both passes on all messages, the handshake as it is.
    for how in ["as it is", "changed", "repeated", "turned round", "longer"] {
        let (near, from_near) = pair();
        let (to_far, far) = pair();
        let munge = daemon.munge();
        let node = thread::spawn(move || accept(far, "n1", me(), &munge).unwrap());
        let back = (to_far.try_clone().unwrap(), from_near.try_clone().unwrap());
        let pass = thread::spawn(move || {
            let (mut from, mut to) = back;
            let mut hello = [0; 40];
            from.read_exact(&mut hello).unwrap();
            to.write_all(&hello).unwrap();
        });
        let between = (from_near.try_clone().unwrap(), to_far.try_clone().unwrap());
        let pass_on = thread::spawn(move || {
            let (mut from, mut to) = between;
            let mut length = [0; 4];
            from.read_exact(&mut length).unwrap();
            let mut credential = vec![0; u32::from_le_bytes(length) as usize];
            from.read_exact(&mut credential).unwrap();
            to.write_all(&length).unwrap();
            to.write_all(&credential).unwrap();
            (from, to)
        });
        let (mut from_node, mut to_node) = open(
            near,
            "n1",
            me(),
            &[SecretBytes::new([7; 32])],
            &daemon.munge(),
        )
        .unwrap();
        let (mut reader, _writer, _) = node.join().unwrap();
        pass.join().unwrap();
        let (mut from, mut to) = pass_on.join().unwrap();
        to_node.send(&greeting(1)).unwrap();
        let mut frame = vec![0; OVERHEAD + 4 + serde_length(&greeting(1))];
        from.read_exact(&mut frame).unwrap();
        match how {
            "changed" => *frame.last_mut().unwrap() ^= 1,
            "longer" => frame[..4].copy_from_slice(&(MAX_FRAME as u32 + 1).to_le_bytes()),
            _ => {}
        }
        if how == "turned round" {
            from.write_all(&frame).unwrap();
            let received = from_node.receive::<Greeting>(SOON);
            assert!(
                matches!(received, Err(SessionError::Broken(_))),
                "{how}: {received:?}"
            );
            continue;
        }
        to.write_all(&frame).unwrap();
        let received = reader.receive::<Greeting>(SOON);
        match how {
            "as it is" => assert_eq!(received.unwrap(), greeting(1)),
            "repeated" => {
                received.unwrap();
                to.write_all(&frame).unwrap();
                let again = reader.receive::<Greeting>(SOON);
                assert!(matches!(again, Err(SessionError::Broken(_))), "{again:?}");
            }
            _ => assert!(
                matches!(received, Err(SessionError::Broken(_))),
                "{how}: {received:?}"
            ),
        }
    }
}

fn serde_length(message: &Greeting) -> usize {
    tarn_proto::site::encode(message).unwrap().len() - 4
}

#[test]
fn whoever_answers_and_is_no_node_is_named() {
    let (near, mut far) = pair();
    far.write_all(b"SSH-2.0-OpenSSH_9.2p1 and so on, more than forty bytes")
        .unwrap();
    let munge = Munge::at("/nonexistent/socket");
    let why = open(near, "n1", 0, &[SecretBytes::new([0; 32])], &munge).unwrap_err();
    assert!(why.to_string().contains("no tarnd of a site"), "{why}");
}

#[test]
fn without_a_daemon_it_is_said_what_is_missing() {
    let why = Munge::at("/nonexistent/socket")
        .encode(b"x", 0)
        .unwrap_err();
    assert!(why.to_string().contains("does munged run"), "{why}");
}
