//! What a store answers: its refusals, what they mean and what to do, and what the signing crate does not read.

use crate::send::{S3Request, S3Sender};
use tarn_ports::{MoverError, ObjectStoreError};
use tarn_types::event::FailureKind;
use tarn_types::object::ObjectUrl;
use ureq::Body;
use ureq::http::Response;

/// Bytes of a refusal that are read.
const MAX_REFUSAL: u64 = 64 << 10;
/// Characters of the store's own words that are shown.
const MAX_WORDS: usize = 300;
/// Two clocks that differ by less agree: the field's stores refuse more than 15 minutes.
const SKEW: i64 = 300;

/// A request that was refused.
#[derive(Debug, Default)]
pub(crate) struct S3ReplyError {
    pub(crate) status: u16,
    /// The protocol's name for why, where the store gives one.
    pub(crate) code: String,
    message: String,
    /// Where the bucket is, if the store says.
    region: Option<String>,
    /// How far the store's clock is ahead of this one, in seconds.
    ahead: Option<i64>,
}

impl S3ReplyError {
    pub(crate) fn of(mut response: Response<Body>) -> Self {
        let status = response.status().as_u16();
        let header = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let region = header("x-amz-bucket-region");
        let date = header("date").as_deref().and_then(http_seconds);
        let body = response.body_mut().with_config().limit(MAX_REFUSAL);
        // Without its words the status has to do.
        let text = body.read_to_string().unwrap_or_default();
        let words = Self::in_answer(&text);
        Self {
            status,
            region: region.or(words.region),
            ahead: date.map(|d| d - now()),
            ..words
        }
    }

    /// What the text of an answer says of an error.
    pub(crate) fn in_answer(text: &str) -> Self {
        let words = element(text, "Message").unwrap_or_default();
        let clean = words.chars().filter(|c| !c.is_control());
        Self {
            status: 200,
            code: element(text, "Code").unwrap_or_default().to_owned(),
            message: clean.take(MAX_WORDS).collect(),
            region: element(text, "Region").map(str::to_owned),
            ahead: None,
        }
    }

    /// Whether it may be otherwise the next time.
    pub(crate) fn passes(&self) -> bool {
        // What was to be told in an answer that began well has not come.
        let is_cut_off = self.status == 200 && self.code.is_empty();
        is_cut_off
            || matches!(self.status, 408 | 429 | 500 | 502 | 503 | 504)
            || matches!(
                self.code.as_str(),
                "SlowDown"
                    | "RequestTimeout"
                    | "InternalError"
                    | "ServiceUnavailable"
                    | "BadDigest"
                    | "OperationAborted"
            )
    }

    /// Whether the store does not know a header that was sent.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.status == 501 || self.code == "NotImplemented"
    }

    /// Whether a condition did not hold. An object that is to be replaced and is gone is no other one.
    pub(crate) fn is_unmet(&self) -> bool {
        self.status == 412 || matches!(self.code.as_str(), "PreconditionFailed" | "NoSuchKey")
    }

    /// Whether another request for the same object came between.
    pub(crate) fn is_crossed(&self) -> bool {
        self.code == "ConditionalRequestConflict"
    }

    /// What, why, and what to do.
    pub(crate) fn error(&self, request: &S3Request<'_>, sender: &S3Sender) -> MoverError {
        let (settings, at) = (sender.settings(), request.at);
        let who = settings.who();
        let (kind, why) = match (self.code.as_str(), self.status) {
            ("NoSuchBucket", _) => (
                FailureKind::Io,
                format!(
                    "there is no bucket `{}` at {}; make it, or check its name and `AWS_ENDPOINT_URL`",
                    at.bucket,
                    settings.endpoint_url()
                ),
            ),
            ("RequestTimeTooSkewed", _) | (_, 400 | 401 | 403) if self.skewed() => (
                FailureKind::Io,
                format!(
                    "this machine's clock and the store's differ by {} s, so it takes no signature; set the clock",
                    self.ahead.unwrap_or_default().abs()
                ),
            ),
            ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => (
                FailureKind::Io,
                format!(
                    "the session token of {who} is no longer good; get a new one, then `tarn resume`"
                ),
            ),
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidSecurity", _) | (_, 401) => (
                FailureKind::Io,
                format!(
                    "the store does not take the signature of {who}; check key and secret, and `AWS_REGION` (now `{}`)",
                    settings.region
                ),
            ),
            ("PreconditionFailed", _) | (_, 412) => (
                FailureKind::SourceChanged,
                "it was replaced while it was read; run again when nobody changes it".into(),
            ),
            ("NoSuchKey" | "InvalidRange", _) | (_, 404 | 416) => (
                FailureKind::SourceChanged,
                "it has vanished, or is shorter than it was; run again when nobody changes it"
                    .into(),
            ),
            ("ConditionalRequestConflict" | "OperationAborted", _) => (
                FailureKind::Io,
                "somebody else puts an object there at the same time; run again when nobody does"
                    .into(),
            ),
            ("QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded", _)
            | (_, 507) => (
                FailureKind::NoSpace,
                "the store is full; free space there, then `tarn resume`".into(),
            ),
            (
                "PermanentRedirect"
                | "TemporaryRedirect"
                | "AuthorizationHeaderMalformed"
                | "AuthorizationQueryParametersError"
                | "IllegalLocationConstraintException",
                _,
            )
            | (_, 301 | 302 | 307 | 308) => (FailureKind::Io, self.elsewhere(&settings.region)),
            (_, 403) => (
                FailureKind::Io,
                format!(
                    "{who} may not do that there; ask the bucket's owner for it, or use other keys"
                ),
            ),
            (_, 503 | 429) | ("SlowDown", _) => (
                FailureKind::Io,
                "the store is busy; run again later, or with fewer nodes at once".into(),
            ),
            ("", 200) => (
                FailureKind::Io,
                "its answer was cut off; run again, or ask who runs the store".into(),
            ),
            (_, 500..) | ("InternalError", _) => (
                FailureKind::Io,
                "the store has failed; run again later, or ask who runs it".into(),
            ),
            _ => (FailureKind::Io, "the store refuses it".into()),
        };
        let error = MoverError::new(kind, request.failed(&format!("{why}{}", self.words())));
        match (self.code.as_str(), self.status) {
            ("NoSuchBucket", _) => error.refused(ObjectStoreError::Missing),
            // A clock or a region that is wrong is no matter of rights, though stores answer so.
            ("RequestTimeTooSkewed" | "PermanentRedirect" | "TemporaryRedirect", _) => error,
            (_, 400 | 401 | 403) if self.skewed() => error,
            (
                "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired"
                | "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "InvalidSecurity",
                _,
            )
            | (_, 401 | 403) => error.refused(ObjectStoreError::Denied),
            _ => error,
        }
    }

    fn elsewhere(&self, region: &str) -> String {
        match &self.region {
            Some(other) => format!(
                "the bucket is in the region `{other}`, not in `{region}`; set `AWS_REGION={other}`"
            ),
            None => format!(
                "the store sends us elsewhere; check `AWS_ENDPOINT_URL` and `AWS_REGION` (now `{region}`)"
            ),
        }
    }

    fn skewed(&self) -> bool {
        self.code == "RequestTimeTooSkewed" || self.ahead.is_some_and(|ahead| ahead.abs() > SKEW)
    }

    /// The store's own words.
    fn words(&self) -> String {
        match (self.code.is_empty(), self.message.is_empty()) {
            (true, true) => format!(" (HTTP status {})", self.status),
            (false, true) => format!(" ({}: {})", self.status, self.code),
            _ => format!(" ({}: {} {})", self.status, self.code, self.message),
        }
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The text of the first element of a name. For refusals, which stores write with and without namespaces.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
        .map(|(inner, _)| inner)
}

/// An ETag without its quotes.
pub(crate) fn plain_etag(etag: &str) -> String {
    etag.trim()
        .trim_start_matches("W/")
        .trim_matches('"')
        .to_owned()
}

/// The ETag of an upload that is complete.
pub(crate) fn etag_of_completed(text: &str) -> Option<String> {
    // Not by its namespace, which some stores give another name.
    let (_, whole) = text.split_once("<CompleteMultipartUploadResult")?;
    let etag = element(whole, "ETag")?.replace("&quot;", "\"");
    Some(plain_etag(&etag))
}

/// Seconds since 1970 of a time in a listing.
pub(crate) fn iso_seconds(text: &str) -> Option<i64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(time.as_second())
}

/// Seconds since 1970 of a time in a header.
pub(crate) fn http_seconds(text: &str) -> Option<i64> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()?;
    Some(time.as_second())
}

pub(crate) fn not_understood(at: &ObjectUrl, why: &str) -> MoverError {
    let text = format!(
        "the store's answer about {at} cannot be understood ({why}): is `AWS_ENDPOINT_URL` that of a store that speaks S3?"
    );
    MoverError::new(FailureKind::Io, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etag_of_a_whole_upload_is_found_whatever_its_namespace() {
        let answer = |attributes: &str, etag: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<CompleteMultipartUploadResult{attributes}>\n<Key>k</Key><ETag>{etag}</ETag>\
                 </CompleteMultipartUploadResult>"
            )
        };
        let amazon = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
        for attributes in ["", amazon, " xmlns=\"http://other/\""] {
            for etag in ["&quot;3858f-2&quot;", "\"3858f-2\""] {
                let found = etag_of_completed(&answer(attributes, etag));
                assert_eq!(found.as_deref(), Some("3858f-2"), "{attributes} {etag}");
            }
        }
        let refused = "<Error><Code>InternalError</Code><ETag>x</ETag></Error>";
        assert_eq!(etag_of_completed(refused), None);
    }
}
