//! One request: signed, sent, and tried again where that may help.

use crate::answer::{self, S3ReplyError};
use crate::request::{S3Request, SILENCE};
use crate::settings::{Settings, SettingsError};
use crate::support::ConditionSupport;
use rusty_s3::{Bucket, Credentials, UrlStyle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_ports::{MoverError, ObjectMetadata, Watch};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;
use tarn_types::random::Random;
use ureq::http::{self, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

type Result<T> = std::result::Result<T, MoverError>;

/// How often a request is sent at most. With the pauses between, a store that is busy or away is waited for some 25 s.
pub(crate) const TRIES: u32 = 8;
/// The first pause lasts up to so long; each is up to twice as long as the one before, as its length is drawn by chance.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Between two looks whether somebody wants it stopped.
const NAP: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes of an answer that is read whole: a page of 1,000 keys of 1,024 bytes, each byte written as three.
const MAX_ANSWER: u64 = 8 << 20;
/// Connections that are kept for the next request: as many as a copy has threads.
const IDLE: usize = 32;

/// Signs a request to a bucket: its URL.
pub(crate) type Sign<'a> = dyn Fn(&Bucket, Option<&Credentials>) -> String + 'a;

/// The result of a request that was answered.
pub(crate) enum S3Reply<T = S3Response> {
    Done(T),
    Refused(S3ReplyError),
}

/// An answer that is no refusal.
pub(crate) struct S3Response {
    response: Response<Body>,
}

impl S3Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn into_body(self) -> Body {
        self.response.into_body()
    }

    pub(crate) fn etag(&self, at: &ObjectUrl) -> Result<String> {
        self.header("etag")
            .map(answer::plain_etag)
            .ok_or_else(|| answer::not_understood(at, "there is no ETag"))
    }

    /// The object that the headers describe.
    pub(crate) fn found(&self, at: &ObjectUrl) -> Result<ObjectMetadata> {
        let size = self.header("content-length").and_then(|n| n.parse().ok());
        let headers = self.response.headers().iter();
        let tags = headers.filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix(crate::TAG)?;
            Some((name.to_owned(), value.to_str().ok()?.to_owned()))
        });
        Ok(ObjectMetadata {
            key: at.key.clone(),
            size: size.ok_or_else(|| answer::not_understood(at, "there is no size"))?,
            etag: self.etag(at)?,
            modified: self
                .header("last-modified")
                .and_then(answer::http_seconds)
                .unwrap_or_default(),
            tags: tags.collect(),
        })
    }
}

/// Sends requests to one store.
pub(crate) struct S3Sender {
    settings: Settings,
    credentials: Option<Credentials>,
    agent: Agent,
    /// The store's known conditions.
    pub(crate) conditions: ConditionSupport,
}

impl S3Sender {
    pub(crate) fn new(settings: Settings) -> std::result::Result<Self, SettingsError> {
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(roots(&settings)?)
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect is signed for another host: it is reported instead.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("tarn/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(IDLE)
            .max_idle_connections_per_host(IDLE)
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .tls_config(tls)
            .build();
        let keys = settings.keys.as_ref();
        Ok(Self {
            credentials: keys.map(|k| match &k.token {
                Some(token) => Credentials::new_with_token(&*k.id, &*k.secret, &**token),
                None => Credentials::new(&*k.id, &*k.secret),
            }),
            settings,
            agent: config.new_agent(),
            conditions: ConditionSupport::default(),
        })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn bucket(&self, at: &ObjectUrl) -> Result<Bucket> {
        let endpoint = self.settings.endpoint_url();
        let bad = |why: &dyn std::fmt::Display| {
            let text = format!(
                "`{endpoint}` is no endpoint for the bucket `{}`: {why}; check `AWS_ENDPOINT_URL`, such as https://HOST:PORT",
                at.bucket
            );
            MoverError::new(RunErrorKind::Io, text)
        };
        let style = match self.settings.endpoint.is_some() || at.bucket.contains(['.', '_']) {
            true => UrlStyle::Path,
            false => UrlStyle::VirtualHost,
        };
        let url = endpoint.parse().map_err(|e| bad(&e))?;
        Bucket::new(url, style, at.bucket.clone(), self.settings.region.clone())
            .map_err(|e| bad(&e))
    }

    /// Has it done; a refusal is an error.
    pub(crate) fn done(
        &self,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &Sign<'_>,
    ) -> Result<S3Response> {
        match self.answered(request, watch, sign)? {
            S3Reply::Done(done) => Ok(done),
            S3Reply::Refused(refusal) => Err(refusal.error(request, &self.settings)),
        }
    }

    /// The same, with the whole answer, which is text.
    pub(crate) fn done_text(
        &self,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &Sign<'_>,
    ) -> Result<String> {
        match self.text(request, watch, sign, &S3Reply::Done)? {
            S3Reply::Done(text) => Ok(text),
            S3Reply::Refused(refusal) => Err(refusal.error(request, &self.settings)),
        }
    }

    /// Has it answered: it tries again after an error that may pass by itself.
    pub(crate) fn answered(
        &self,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &Sign<'_>,
    ) -> Result<S3Reply> {
        let take = |response| Ok(S3Reply::Done(S3Response { response }));
        self.tried(request, watch, sign, &take)
    }

    /// The same, with an answer that is text and that `read` interprets. It is requested again if it is cut off.
    pub(crate) fn text<T>(
        &self,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &Sign<'_>,
        read: &dyn Fn(String) -> S3Reply<T>,
    ) -> Result<S3Reply<T>> {
        self.tried(request, watch, sign, &|mut response| {
            let body = response.body_mut().with_config().limit(MAX_ANSWER);
            body.read_to_string().map(read)
        })
    }

    fn tried<T>(
        &self,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &Sign<'_>,
        take: &dyn Fn(Response<Body>) -> std::result::Result<S3Reply<T>, ureq::Error>,
    ) -> Result<S3Reply<T>> {
        let bucket = self.bucket(request.at)?;
        let mut pauses = Pauses::new();
        loop {
            let url = sign(&bucket, self.credentials.as_ref());
            let sent = self.send(request, &url);
            let answered = sent.and_then(|response| match response.status().is_success() {
                true => take(response),
                false => Ok(S3Reply::Refused(S3ReplyError::of(response))),
            });
            let trouble = match answered {
                Ok(S3Reply::Refused(refusal)) if refusal.may_pass(request) => {
                    refusal.error(request, &self.settings)
                }
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let why = format!("{} {}", self.settings.endpoint_url(), error_text(&error));
                    let text = request.failed(&format!("{why}; {}", remedy(&error)));
                    let error_is_final = !passes(&error);
                    let error = MoverError::new(RunErrorKind::Io, text);
                    if error_is_final {
                        return Err(error);
                    }
                    error
                }
            };
            pauses.pause(watch, trouble)?;
        }
    }

    fn send(
        &self,
        request: &S3Request<'_>,
        url: &str,
    ) -> std::result::Result<Response<Body>, ureq::Error> {
        let mut builder = http::Request::builder().method(&request.method).uri(url);
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        if let Some((name, value)) = &request.condition {
            builder = builder.header(*name, value);
        }
        if request.expects_continue {
            builder = builder.header("expect", "100-continue");
        }
        let silence = Some(request.silence);
        match request.body {
            Some(body) => {
                let configured = self.agent.configure_request(builder.body(body)?);
                self.agent
                    .run(configured.timeout_recv_response(silence).build())
            }
            None => {
                let configured = self.agent.configure_request(builder.body(())?);
                self.agent
                    .run(configured.timeout_recv_response(silence).build())
            }
        }
    }
}

/// The pauses between tries: at most so many, each drawn by chance, so that those who were refused together do not come back
/// together.
pub(crate) struct Pauses {
    left: u32,
    longest: Duration,
    random: Random,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        Self {
            left: TRIES - 1,
            longest: PAUSE,
            random: Random::new(nanos ^ u64::from(std::process::id())),
        }
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The trouble, when it was the last try; when somebody wants it stopped.
    pub(crate) fn pause(&mut self, watch: &dyn Watch, trouble: MoverError) -> Result<()> {
        if self.left == 0 {
            let mut trouble = trouble;
            let text = &mut trouble.failure.message;
            *text = format!("{text} (tried {TRIES} times)");
            return Err(trouble);
        }
        self.left -= 1;
        let until = Instant::now() + self.longest.mul_f64(self.random.unit());
        self.longest = LONGEST_PAUSE.min(self.longest * 2);
        loop {
            if watch.stopped() {
                let text = "the transfer was cancelled; nothing of it is visible";
                return Err(MoverError::new(RunErrorKind::Cancelled, text));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// Whether nobody who is trusted vouches for the store.
fn distrusted(error: &ureq::Error) -> bool {
    let of_tls = |e: &std::io::Error| e.get_ref().is_some_and(|e| e.is::<rustls::Error>());
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Io(e) => of_tls(e),
        _ => false,
    }
}

/// Whether it may be otherwise the next time.
fn passes(error: &ureq::Error) -> bool {
    use ureq::Error::{BodyStalled, ConnectionFailed, HostNotFound, Io, Protocol, Timeout};
    let may = matches!(
        error,
        Io(_) | Timeout(_) | ConnectionFailed | HostNotFound | Protocol(_) | BodyStalled
    );
    may && !distrusted(error)
}

/// The text of an error, without the URL, which is signed.
pub(crate) fn error_text(error: &ureq::Error) -> String {
    use ureq::Error::{BadUri, ConnectionFailed, HostNotFound, Io, RequireHttpsOnly, Timeout};
    match error {
        Io(e) => e.to_string(),
        Timeout(what) => format!("is silent (timeout: {what})"),
        HostNotFound => "has a host name that is not known".into(),
        ConnectionFailed => "cannot be connected to".into(),
        BadUri(_) | RequireHttpsOnly(_) => "is no URL".into(),
        other => other.to_string(),
    }
}

fn remedy(error: &ureq::Error) -> &'static str {
    match distrusted(error) {
        true => {
            "if the store has a private certificate, name the file of its authority in `AWS_CA_BUNDLE`"
        }
        false => "check `AWS_ENDPOINT_URL`, and that this node reaches it",
    }
}

/// The certificates that are trusted: the system's, or those of the file that the user names.
fn roots(settings: &Settings) -> std::result::Result<RootCerts, SettingsError> {
    if !settings.endpoint_url().starts_with("https:") {
        return Ok(RootCerts::new_with_certs(&[]));
    }
    let (file, pem) = settings.certificates()?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(one)) => Some(one),
        _ => None,
    });
    let all: Vec<Certificate<'static>> = items.collect();
    match all.is_empty() {
        true => Err(SettingsError::Empty(file)),
        false => Ok(RootCerts::new_with_certs(&all)),
    }
}
