//! A store with TLS, whose certificate is one of its own.

use crate::common::{Bucket, KEY, SECRET, head, length, swift};
use crate::{content, deliver, fetch, mover, source, url};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use tarn_ports::{Control, Mover};
use tarn_s3::S3Client;

/// Speaks TLS before the store; the endpoint, and its certificate as text.
fn before() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("a server");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let store = swift()
        .endpoint
        .strip_prefix("http://")
        .expect("http")
        .to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, store) = (Arc::clone(&config), store.clone());
            // The peer at its end has gone.
            std::thread::spawn(move || drop(serve(stream, config, &store)));
        }
    });
    (format!("https://localhost:{port}"), made.cert.pem())
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, store: &str) -> std::io::Result<()> {
    let tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(tls, stream));
    let request = head(&mut reader)?;
    let mut body = vec![0; length(&request)];
    reader.read_exact(&mut body)?;
    let mut to = TcpStream::connect(store)?;
    to.write_all(
        request
            .replacen("\r\n", "\r\nConnection: close\r\n", 1)
            .as_bytes(),
    )?;
    to.write_all(&body)?;
    let mut answer = Vec::new();
    to.read_to_end(&mut answer)?;
    let tls = reader.get_mut();
    tls.write_all(&answer)?;
    tls.conn.send_close_notify();
    tls.flush()
}

fn client(endpoint: &str, certificate: &Path) -> Arc<S3Client> {
    let vars = [
        ("AWS_ENDPOINT_URL", endpoint.to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
        ("AWS_CA_BUNDLE", certificate.display().to_string()),
    ];
    Arc::new(S3Client::new(move |name| {
        Some(vars.iter().find(|(n, _)| *n == name)?.1.clone().into())
    }))
}

#[test]
fn a_store_with_a_certificate_of_its_own() {
    let bucket = Bucket::new("tls");
    let dir = tempfile::tempdir().unwrap();
    let (endpoint, pem) = before();
    let (own, other) = (dir.path().join("own.pem"), dir.path().join("other.pem"));
    fs::write(&own, pem).unwrap();
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&other, stranger.cert.pem()).unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), content(20 << 20)).unwrap();
    for name in ["a", "b", "c", "d"] {
        fs::write(from.join(name), name).unwrap();
    }
    let dest = url(&bucket, "out/");
    let trees = mover(client(&endpoint, &own));
    deliver(&trees, &from, &dest, "w").unwrap();
    let back = dir.path().join("back");
    fetch(&trees, source(&dest), &back).unwrap();
    assert!(fs::read(back.join("large")).unwrap() == content(20 << 20));
    // One that nobody vouches for gets no request.
    let error = mover(client(&endpoint, &other))
        .list(&dest, &Control::default())
        .unwrap_err();
    assert!(error.to_string().contains("AWS_CA_BUNDLE"), "{error}");
}
