//! A store that lies in all its answers. It is this test's own: it needs no real one.

use crate::common::{client, head, length};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tarn_ports::{Control, MoverError, ObjectStore};
use tarn_types::object::ObjectUrl;

/// A store that answers each request, by its first line and number, as it likes.
struct Liar {
    store: Arc<dyn ObjectStore>,
    requests: Arc<AtomicUsize>,
}

impl Liar {
    fn new(
        lie: impl Fn(&str, usize, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let (count, lie) = (Arc::clone(&requests), Arc::new(lie));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (count, lie) = (Arc::clone(&count), Arc::clone(&lie));
                std::thread::spawn(move || -> std::io::Result<()> {
                    let mut reader = BufReader::new(stream.try_clone()?);
                    let request = head(&mut reader)?;
                    let mut body = vec![0; length(&request)];
                    reader.read_exact(&mut body)?;
                    let first = request.lines().next().unwrap_or_default();
                    lie(first, count.fetch_add(1, Ordering::SeqCst), &mut stream)
                });
            }
        });
        Self {
            store: client(&endpoint, "key", "secret"),
            requests,
        }
    }

    /// Always the same words.
    fn saying(answer: String) -> Self {
        Self::new(move |_, _, stream| stream.write_all(answer.as_bytes()))
    }

    fn list(&self) -> Result<usize, MoverError> {
        let mut found = 0;
        let each = &mut |_| {
            found += 1;
            Ok(())
        };
        let at = at("in/");
        self.store.list(&at, &Control::default(), each)?;
        Ok(found)
    }

    /// The first bytes of an object of which these are known.
    fn read(&self, len: u64, etag: Option<&str>) -> Result<Vec<u8>, MoverError> {
        let (at, control) = (at("in/a"), Control::default());
        let mut body = self.store.open(&at, 0..len, etag, &control)?;
        let mut bytes = vec![0; len as usize];
        body.fill(&mut bytes)?;
        Ok(bytes)
    }
}

fn at(key: &str) -> ObjectUrl {
    ObjectUrl {
        profile: None,
        bucket: "lies".into(),
        key: key.into(),
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// A page of a list with one object, and the token of the next one.
fn page(key: &str, next: &str) -> String {
    let object = format!(
        "<Contents><Key>{key}</Key><LastModified>2020-01-01T00:00:00Z</LastModified><ETag>\"e\"</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
    );
    xml(&format!(
        "<KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>{object}<NextContinuationToken>{next}</NextContinuationToken>"
    ))
}

fn xml(inside: &str) -> String {
    let space = "http://s3.amazonaws.com/doc/2006-03-01/";
    let text = format!(
        "<ListBucketResult xmlns=\"{space}\"><Name>lies</Name><Prefix>in/</Prefix>{inside}</ListBucketResult>"
    );
    answer("200 OK", "", &text)
}

#[test]
fn attack_a_list_that_leads_round_in_a_circle_ends() {
    // Two tokens that lead to each other, and a new one for each page of the same objects.
    let two = |_: &str, n: usize| page(["in/a", "in/b"][n % 2], ["x", "y"][n % 2]);
    let new = |_: &str, n: usize| page("in/a", &format!("t{n}"));
    type Lie = fn(&str, usize) -> String;
    for lie in [two as Lie, new] {
        let liar =
            Liar::new(move |request, n, stream| stream.write_all(lie(request, n).as_bytes()));
        let error = liar.list().unwrap_err();
        assert!(error.failure.message.contains("stops"), "{error}");
        assert!(liar.requests.load(Ordering::SeqCst) < 5, "{error}");
    }
}

#[test]
fn attack_a_list_of_bombs_is_not_understood() {
    let entities: String = (1..30)
        .map(|n| format!("<!ENTITY l{n} \"&l{0};&l{0};&l{0};&l{0};\">", n - 1))
        .collect();
    let laughs = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE l [<!ENTITY l0 \"lol\">{entities}]><ListBucketResult><Name>&l29;</Name></ListBucketResult>"
    );
    let foreign = "<?xml version=\"1.0\"?><!DOCTYPE l [<!ENTITY f SYSTEM \"file:///etc/passwd\">]><ListBucketResult><Name>&f;</Name></ListBucketResult>";
    // As deep as an answer may be long.
    let deep = 1 << 20;
    let deep = [
        xml("")
            .split_once("\r\n\r\n")
            .unwrap()
            .1
            .replace("</ListBucketResult>", ""),
        "<a>".repeat(deep),
        "</a>".repeat(deep),
        "</ListBucketResult>".into(),
    ]
    .concat();
    for text in [
        laughs,
        foreign.into(),
        deep,
        "<ListBucketResult".into(),
        String::new(),
    ] {
        let what: String = text.chars().take(60).collect();
        let error = Liar::saying(answer("200 OK", "", &text)).list();
        match error {
            Err(e) => assert!(!e.failure.message.contains("root:"), "{what}: {e}"),
            // Elements that nobody asks for may be passed over, however deep.
            Ok(found) => assert_eq!(found, 0, "{what}"),
        }
    }
}

#[test]
fn attack_an_answer_without_end_is_cut() {
    for headers in [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 403 Forbidden\r\n",
        "HTTP/1.1 200 OK\r\nX: ",
    ] {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let liar = Liar::new(move |_, _, stream| {
            stream.write_all(headers.as_bytes())?;
            if !headers.ends_with("X: ") {
                stream.write_all(b"Connection: close\r\n\r\n")?;
            }
            let some = [b'x'; 64 << 10];
            loop {
                stream.write_all(&some)?;
                count.fetch_add(some.len(), Ordering::SeqCst);
            }
        });
        let error = liar.list().unwrap_err();
        // The bytes that tarn reads of it, and those that the connection holds; for each request.
        let most = liar.requests.load(Ordering::SeqCst) * (32 << 20);
        assert!(sent.load(Ordering::SeqCst) < most, "{headers:?}: {error}");
    }
}

#[test]
fn attack_who_is_sent_elsewhere_does_not_go_there() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let location = format!("Location: http://{}/\r\n", other.local_addr().unwrap());
    for status in [
        "301 Moved",
        "302 Found",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let liar = Liar::saying(answer(status, &location, ""));
        let list = liar.list().unwrap_err();
        let read = liar.read(10, None).unwrap_err();
        for error in [list, read] {
            assert!(
                error.failure.message.contains("sends us elsewhere"),
                "{status}: {error}"
            );
        }
    }
    // Nobody came, with any signature.
    assert_eq!(
        other.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[test]
fn attack_other_bytes_than_were_asked_for_are_not_taken() {
    let object = |range: &str, etag: &str, body: &str| {
        let headers = format!("ETag: \"{etag}\"\r\nContent-Range: bytes {range}\r\n");
        answer("206 Partial Content", &headers, body)
    };
    let whole = "0123456789";
    assert_eq!(
        Liar::saying(object("0-9/10", "e", whole))
            .read(10, Some("e"))
            .unwrap(),
        whole.as_bytes()
    );
    let lies = [
        object("0-9/10", "other", whole),
        object("1-10/11", "e", whole),
        object("0-8/10", "e", "012345678"),
        object("0-9/9", "e", whole),
        object("9-0/10", "e", whole),
        object("0-18446744073709551615/10", "e", whole),
        object("0-99/100", "e", whole),
        object("", "e", whole),
        answer("200 OK", "ETag: \"e\"\r\n", "012"),
        answer("206 Partial Content", "ETag: \"e\"\r\n", whole),
        answer(
            "206 Partial Content",
            "Content-Range: bytes 0-9/10\r\n",
            whole,
        ),
    ];
    for lie in lies {
        let read = Liar::saying(lie.clone()).read(10, Some("e"));
        assert!(read.is_err(), "{lie}");
    }
    // More comes than was requested and announced: nobody reads it.
    let more = object("0-9/10", "e", whole) + "0123456789";
    assert_eq!(
        Liar::saying(more).read(10, Some("e")).unwrap(),
        whole.as_bytes()
    );
    // A length that is not kept: the rest is requested, and the bytes that come then are not the rest.
    let short = object("0-9/10", "e", whole).replace(whole, "0123");
    let error = Liar::saying(short).read(10, Some("e")).unwrap_err();
    assert!(error.failure.message.contains("not the bytes"), "{error}");
}
