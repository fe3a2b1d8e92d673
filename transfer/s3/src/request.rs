//! A request to a store: its method, headers, body and condition, before it is signed and sent.

use std::time::Duration;
use tarn_types::object::ObjectUrl;
use ureq::http::Method;

/// Until an answer begins, and between two pieces of it. A store that is silent for longer is taken for lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// The same where the store has to put an object together.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A request about an object or the objects below a place.
pub(crate) struct S3Request<'a> {
    /// For messages: `list`, `put`.
    doing: &'static str,
    pub(crate) at: &'a ObjectUrl,
    pub(crate) method: Method,
    pub(crate) headers: Vec<(String, String)>,
    /// `None` where the method has none.
    pub(crate) body: Option<&'a [u8]>,
    /// Until an answer begins.
    pub(crate) silence: Duration,
    /// The condition under which the store carries it out.
    pub(crate) condition: Option<Condition>,
    /// It is not known whether the store takes the condition: the body waits until it accepts.
    pub(crate) expects_continue: bool,
}

/// A header with a condition, and its value.
pub(crate) type Condition = (&'static str, String);

impl<'a> S3Request<'a> {
    fn new(doing: &'static str, at: &'a ObjectUrl, method: Method, body: Option<&'a [u8]>) -> Self {
        Self {
            doing,
            at,
            method,
            headers: Vec::new(),
            body,
            silence: SILENCE,
            condition: None,
            expects_continue: false,
        }
    }
    pub(crate) fn get(doing: &'static str, at: &'a ObjectUrl) -> Self {
        Self::new(doing, at, Method::GET, None)
    }
    pub(crate) fn head(doing: &'static str, at: &'a ObjectUrl) -> Self {
        Self::new(doing, at, Method::HEAD, None)
    }
    pub(crate) fn delete(doing: &'static str, at: &'a ObjectUrl) -> Self {
        Self::new(doing, at, Method::DELETE, None)
    }
    pub(crate) fn put(doing: &'static str, at: &'a ObjectUrl, body: &'a [u8]) -> Self {
        Self::new(doing, at, Method::PUT, Some(body))
    }
    pub(crate) fn post(doing: &'static str, at: &'a ObjectUrl, body: &'a [u8]) -> Self {
        Self::new(doing, at, Method::POST, Some(body))
    }
    /// The store may take long to answer.
    pub(crate) fn patient(mut self) -> Self {
        self.silence = TIMEOUT;
        self
    }

    pub(crate) fn doing(&self) -> &'static str {
        self.doing
    }

    /// Bytes of its body.
    pub(crate) fn len(&self) -> usize {
        self.body.map_or(0, <[u8]>::len)
    }

    pub(crate) fn is_put(&self) -> bool {
        self.method == Method::PUT
    }

    /// The text of a failed operation.
    pub(crate) fn failed(&self, why: &str) -> String {
        format!("cannot {} {}: {why}", self.doing, self.at)
    }
}
