//! An object store to test against (Swift, which scripts/swift.py starts), and a proxy in front of it that misbehaves.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tarn_ports::{Control, ObjectMetadata, ObjectStore, Replaces, Tags, Upload};
use tarn_s3::S3Client;
use tarn_types::object::ObjectUrl;

pub(crate) const KEY: &str = "test:tester";
pub(crate) const SECRET: &str = "testing";

/// The store of this test program.
pub(crate) struct Swift {
    pub(crate) endpoint: String,
    /// It ends with its standard input, which this process holds.
    _child: Child,
}

/// How many objects the soak puts, of a store that lists as many at once as it does by itself.
pub(crate) fn many() -> Option<usize> {
    std::env::var("TARN_MANY").ok()?.parse().ok()
}

/// Starts it at the first call.
pub(crate) fn swift() -> &'static Swift {
    static SWIFT: OnceLock<Swift> = OnceLock::new();
    SWIFT.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/swift.py");
        let folder = tempfile::tempdir().expect("a folder").keep();
        let mut command = Command::new(script);
        command.arg(&folder);
        if many().is_none() {
            // So that a listing of some hundred objects has several pages.
            command.args(["127.0.0.1", "100"]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("swift.py starts (scripts/deps.sh test installs Swift)");
        let out = child.stdout.take().expect("piped");
        let mut line = String::new();
        BufReader::new(out)
            .read_line(&mut line)
            .expect("it says that it is ready");
        let endpoint = line
            .strip_prefix("ready ")
            .unwrap_or_else(|| panic!("Swift did not start"));
        Swift {
            endpoint: endpoint.trim().to_owned(),
            _child: child,
        }
    })
}

/// A client of this endpoint.
pub(crate) fn client(endpoint: &str, key: &str, secret: &str) -> Arc<dyn ObjectStore> {
    let vars = [
        ("AWS_ENDPOINT_URL", endpoint.to_owned()),
        ("AWS_ACCESS_KEY_ID", key.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ];
    let var = move |name: &str| {
        let found = vars.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| value.into())
    };
    S3Client::new(var).shared()
}

fn bucket(name: &str) -> rusty_s3::Bucket {
    let url = swift().endpoint.parse().expect("a URL");
    let style = rusty_s3::UrlStyle::Path;
    rusty_s3::Bucket::new(url, style, name.to_owned(), "us-east-1").expect("a bucket")
}

/// A bucket of the test's own, seen by a client without faults.
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn ObjectStore>,
}

impl Bucket {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("{test}-{}", std::process::id());
        let endpoint = &swift().endpoint;
        let bucket = bucket(&name);
        let keys = rusty_s3::Credentials::new(KEY, SECRET);
        let signed = rusty_s3::S3Action::sign(
            &bucket.create_bucket(&keys),
            std::time::Duration::from_secs(60),
        );
        ureq::put(signed.as_str())
            .send_empty()
            .expect("the bucket is made");
        Self {
            name,
            store: client(endpoint, KEY, SECRET),
        }
    }

    pub(crate) fn at(&self, key: &str) -> ObjectUrl {
        ObjectUrl {
            profile: None,
            bucket: self.name.clone(),
            key: key.into(),
        }
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) -> String {
        let put = self.store.put(
            &self.at(key),
            bytes,
            &Tags::new(),
            Replaces::Anything,
            &Control::default(),
        );
        put.expect("put")
    }

    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        self.all(prefix).into_iter().map(|f| f.key).collect()
    }

    pub(crate) fn all(&self, prefix: &str) -> Vec<ObjectMetadata> {
        let mut all = Vec::new();
        let listed = self
            .store
            .list(&self.at(prefix), &Control::default(), &mut |found| {
                all.push(found);
                Ok(())
            });
        listed.expect("listed");
        all
    }

    /// The keys of uploads that were begun below a prefix and not ended.
    pub(crate) fn uploads(&self, prefix: &str) -> Vec<String> {
        let all = self.begun(prefix).into_iter();
        all.map(|upload| upload.at.key).collect()
    }

    /// The first of them.
    pub(crate) fn upload(&self, prefix: &str) -> Upload {
        self.begun(prefix).remove(0)
    }

    /// Ends them all.
    pub(crate) fn end_uploads(&self, prefix: &str) {
        for upload in self.begun(prefix) {
            let ended = self.store.abort(&upload, &Control::default());
            ended.expect("ended");
        }
    }

    /// The numbers of the parts of the first of them.
    pub(crate) fn parts(&self, prefix: &str) -> Vec<u16> {
        let Some(upload) = self.begun(prefix).into_iter().next() else {
            return Vec::new();
        };
        let parts = self.store.parts(&upload, &Control::default());
        parts
            .expect("told")
            .unwrap_or_default()
            .into_keys()
            .collect()
    }

    fn begun(&self, prefix: &str) -> Vec<Upload> {
        let bucket = bucket(&self.name);
        let keys = rusty_s3::Credentials::new(KEY, SECRET);
        // The crate has no such action; this one is of the same method and place.
        let mut action = rusty_s3::actions::ListObjectsV2::new(&bucket, Some(&keys));
        let query = rusty_s3::S3Action::query_mut(&mut action);
        query.remove("list-type");
        query.remove("encoding-type");
        query.insert("uploads", "");
        query.insert("prefix", prefix.to_owned());
        let signed = rusty_s3::S3Action::sign(&action, std::time::Duration::from_secs(60));
        let mut answer = ureq::get(signed.as_str()).call().expect("uploads");
        let text = answer.body_mut().read_to_string().expect("a list");
        let all = text.split("<Upload>").skip(1);
        let element = |of: &str, name: &str| {
            let (_, rest) = of.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
        };
        let upload = |of| {
            Some(Upload {
                at: self.at(&element(of, "Key")?),
                id: element(of, "UploadId")?,
            })
        };
        all.filter_map(upload).collect()
    }

    pub(crate) fn read(&self, key: &str) -> Vec<u8> {
        let at = self.at(key);
        let found = self
            .store
            .look(&at, &Control::default())
            .expect("looked at")
            .expect("it is there");
        let mut bytes = vec![0; found.size as usize];
        if found.size > 0 {
            let control = Control::default();
            let mut body = self
                .store
                .open(&at, 0..found.size, None, &control)
                .expect("opened");
            body.fill(&mut bytes).expect("read");
        }
        bytes
    }
}

/// The treatment of a request.
pub(crate) enum Act {
    Pass,
    /// It is answered at once with this head line, headers and body, and never reaches the store.
    Answer(String),
    /// So many bytes of the answer's body come, then the connection ends.
    CutAnswer(usize),
    /// The store gets it, and the connection ends before a byte of the answer.
    LoseAnswer,
    /// So many bytes of the request's body are read, then the connection ends.
    CutRequest(usize),
    /// Words of the answer are replaced (of the same length where it is a body).
    Change(Vec<(String, String)>),
}

/// A refusal as stores write it.
pub(crate) fn refusal(status: &str, headers: &str, code: &str, message: &str) -> Act {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    Act::Answer(format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ))
}

pub(crate) fn busy() -> Act {
    refusal(
        "503 Slow Down",
        "",
        "SlowDown",
        "Please reduce your request rate.",
    )
}

/// Decides what becomes of a request, by its first line and the number of requests before it.
type Decide = dyn Fn(&str, usize) -> Act + Send + Sync;

/// The treatment of the conditions of requests, which Swift refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// The store has them.
    AsStore,
    /// They are kept, as Amazon's store does.
    Kept,
    /// They are passed over.
    Ignored,
}

/// A proxy before the store. It ends with the process.
pub(crate) struct Proxy {
    pub(crate) endpoint: String,
    conditions: Arc<Mutex<Conditions>>,
    decide: Arc<Mutex<Arc<Decide>>>,
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub(crate) fn new(decide: impl Fn(&str, usize) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let decide: Arc<Decide> = Arc::new(decide);
        let proxy = Self {
            endpoint,
            conditions: Arc::new(Mutex::new(Conditions::AsStore)),
            decide: Arc::new(Mutex::new(decide)),
            seen: Arc::default(),
        };
        let store = swift()
            .endpoint
            .strip_prefix("http://")
            .expect("http")
            .to_owned();
        let (decide, seen, count) = (
            Arc::clone(&proxy.decide),
            Arc::clone(&proxy.seen),
            Arc::new(AtomicUsize::new(0)),
        );
        let conditions = Arc::clone(&proxy.conditions);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (store, decide, seen, count) = (
                    store.clone(),
                    Arc::clone(&decide),
                    Arc::clone(&seen),
                    Arc::clone(&count),
                );
                let conditions = Arc::clone(&conditions);
                std::thread::spawn(move || {
                    let decide = Arc::clone(&decide.lock().expect("whole"));
                    let conditions = *conditions.lock().expect("whole");
                    // The peer at its end has gone.
                    let _ = serve(stream, &store, (&*decide, conditions), &seen, &count);
                });
            }
        });
        proxy
    }

    /// The same with a store that treats conditions so.
    pub(crate) fn with(self, conditions: Conditions) -> Self {
        *self.conditions.lock().expect("whole") = conditions;
        self
    }

    pub(crate) fn client(&self) -> Arc<dyn ObjectStore> {
        client(&self.endpoint, KEY, SECRET)
    }

    pub(crate) fn set(&self, decide: impl Fn(&str, usize) -> Act + Send + Sync + 'static) {
        *self.decide.lock().expect("whole") = Arc::new(decide);
    }
}

pub(crate) fn head(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

pub(crate) fn length(head: &str) -> usize {
    let line = head.lines().find_map(|l| {
        l.to_lowercase()
            .strip_prefix("content-length:")
            .map(|n| n.trim().to_owned())
    });
    line.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// One request of a connection.
fn serve(
    mut stream: TcpStream,
    store: &str,
    (decide, conditions): (&Decide, Conditions),
    seen: &Mutex<Vec<String>>,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = head(&mut reader)?;
    if without(&mut request, "expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let first = request.lines().next().unwrap_or_default().to_owned();
    seen.lock().expect("whole").push(first.clone());
    let act = decide(&first, count.fetch_add(1, Ordering::SeqCst));
    let mut body = vec![0; length(&request)];
    if let Act::CutRequest(bytes) = act {
        let some = bytes.min(body.len());
        reader.read_exact(&mut body[..some])?;
        return stream.shutdown(Shutdown::Both);
    }
    reader.read_exact(&mut body)?;
    if let Act::Answer(answer) = &act {
        return stream.write_all(answer.as_bytes());
    }
    let writes = !first.starts_with("GET ") && !first.starts_with("HEAD ");
    // One at a time, so that a condition holds until the request is done.
    static WRITES: Mutex<()> = Mutex::new(());
    let mut held = None;
    if writes && conditions != Conditions::AsStore {
        held = Some(
            WRITES
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        let absent = without(&mut request, "if-none-match");
        let same = without(&mut request, "if-match");
        if conditions == Conditions::Kept
            && let Some(Act::Answer(refused)) = unmet(&first, absent.is_some(), same)
        {
            return stream.write_all(refused.as_bytes());
        }
    }
    let mut to = TcpStream::connect(store)?;
    // Headers that are signed stay; one connection is for one request.
    let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    to.write_all(request.as_bytes())?;
    to.write_all(&body)?;
    let mut answer = Vec::new();
    to.read_to_end(&mut answer)?;
    drop(held);
    if matches!(act, Act::LoseAnswer) {
        return stream.shutdown(Shutdown::Both);
    }
    let split = answer
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map_or(answer.len(), |at| at + 4);
    let (mut bytes, keep) = match act {
        Act::CutAnswer(some) => (answer.clone(), split + some),
        Act::Change(words) => {
            let mut text = answer.clone();
            for (from, to) in words {
                text = replaced(&text, from.as_bytes(), to.as_bytes());
            }
            (text, usize::MAX)
        }
        _ => (answer, usize::MAX),
    };
    bytes.truncate(keep);
    let text = String::from_utf8_lossy(&bytes[..split.min(bytes.len())]).to_lowercase();
    if !text.contains("connection: close") {
        let line = bytes
            .windows(2)
            .position(|w| w == b"\r\n")
            .map_or(0, |at| at + 2);
        bytes.splice(line..line, b"Connection: close\r\n".iter().copied());
    }
    stream.write_all(&bytes)?;
    stream.shutdown(Shutdown::Both)
}

/// Takes a header out of a request's head; its value.
fn without(head: &mut String, name: &str) -> Option<String> {
    let is = |line: &&str| {
        let name = format!("{name}:");
        line.get(..name.len())
            .is_some_and(|n| n.eq_ignore_ascii_case(&name))
    };
    let line = head.lines().find(is)?.to_owned();
    *head = head.replacen(&format!("{line}\r\n"), "", 1);
    Some(line[name.len() + 1..].trim().to_owned())
}

/// The answer of Amazon's store to a condition that does not hold.
fn unmet(first: &str, absent: bool, same: Option<String>) -> Option<Act> {
    let path = first.split(' ').nth(1)?.split('?').next()?;
    let (bucket, key) = path.strip_prefix('/')?.split_once('/')?;
    let at = ObjectUrl {
        profile: None,
        bucket: bucket.into(),
        key: key.into(),
    };
    let found = client(&swift().endpoint, KEY, SECRET).look(&at, &Control::default());
    let found = found.expect("looked at");
    let failed = |header: &str| {
        refusal(
            "412 Precondition Failed",
            "",
            "PreconditionFailed",
            &format!("At least one of the pre-conditions you specified did not hold: {header}"),
        )
    };
    match (found, same) {
        (Some(_), _) if absent => Some(failed("If-None-Match")),
        (None, Some(_)) => Some(refusal("404 Not Found", "", "NoSuchKey", "No such key.")),
        (Some(found), Some(etag)) if found.etag != etag.trim_matches('"') => {
            Some(failed("If-Match"))
        }
        _ => None,
    }
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(from) {
            out.extend_from_slice(to);
            at += from.len();
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}
