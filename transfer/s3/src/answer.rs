//! A store's answers: its errors, their meaning and remedy, and the parts that the signing crate does not read.

use crate::request::S3Request;
use crate::settings::Settings;
use tarn_ports::{MoverError, ObjectStoreError};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;
use ureq::Body;
use ureq::http::Response;

/// Bytes of a refusal that are read.
const MAX_REFUSAL: u64 = 64 << 10;
/// Characters of the store's own words that are shown.
const MAX_WORDS: usize = 300;
/// Two clocks that differ by less agree: the field's stores refuse more than 15 minutes.
const SKEW: i64 = 300;

/// The cause of an error: it decides the message to the user and the kind of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalCause {
    NoBucket,
    ClockSkew,
    TokenExpired,
    BadSignature,
    Replaced,
    Vanished,
    /// Another request for the same object came between.
    Contended,
    Full,
    /// The bucket is in another region.
    Elsewhere,
    Forbidden,
    Busy,
    CutOff,
    StoreFailed,
    Other,
}

impl RefusalCause {
    fn failure_kind(self) -> RunErrorKind {
        match self {
            Self::Replaced | Self::Vanished => RunErrorKind::SourceChanged,
            Self::Full => RunErrorKind::NoSpace,
            _ => RunErrorKind::Io,
        }
    }
}

/// A request that was refused.
#[derive(Debug, Default)]
pub(crate) struct S3ReplyError {
    pub(crate) status: u16,
    /// The protocol's name for why, where the store gives one.
    pub(crate) code: String,
    message: String,
    /// The bucket's region, if the store says it.
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

    /// The error that the text of an answer describes.
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
    fn passes(&self) -> bool {
        // An answer that began well was cut off before its result.
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

    /// Whether it may not come the next time the same request is sent. An upload in parts that has met another request has
    /// to be begun again.
    pub(crate) fn may_pass(&self, request: &S3Request<'_>) -> bool {
        let again = self.is_crossed() && request.condition.is_some() && request.is_put();
        self.passes() || again
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

    /// The operation, the reason, and the remedy.
    pub(crate) fn error(&self, request: &S3Request<'_>, settings: &Settings) -> MoverError {
        let cause = self.cause();
        let why = self.explain(cause, request.at, settings);
        let text = request.failed(&format!("{why}{}", self.words()));
        let error = MoverError::new(cause.failure_kind(), text);
        match self.kind() {
            Some(kind) => error.refused(kind),
            None => error,
        }
    }

    /// The cause: by the protocol's name for it, if the store gives one that is known, else by the status.
    fn cause(&self) -> RefusalCause {
        match (self.code.as_str(), self.status) {
            ("NoSuchBucket", _) => RefusalCause::NoBucket,
            ("RequestTimeTooSkewed", _) | (_, 400 | 401 | 403) if self.skewed() => {
                RefusalCause::ClockSkew
            }
            ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                RefusalCause::TokenExpired
            }
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidSecurity", _) | (_, 401) => {
                RefusalCause::BadSignature
            }
            ("PreconditionFailed", _) | (_, 412) => RefusalCause::Replaced,
            ("NoSuchKey" | "InvalidRange", _) | (_, 404 | 416) => RefusalCause::Vanished,
            ("ConditionalRequestConflict" | "OperationAborted", _) => RefusalCause::Contended,
            ("QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded", _)
            | (_, 507) => RefusalCause::Full,
            (
                "PermanentRedirect"
                | "TemporaryRedirect"
                | "AuthorizationHeaderMalformed"
                | "AuthorizationQueryParametersError"
                | "IllegalLocationConstraintException",
                _,
            )
            | (_, 301 | 302 | 307 | 308) => RefusalCause::Elsewhere,
            (_, 403) => RefusalCause::Forbidden,
            (_, 503 | 429) | ("SlowDown", _) => RefusalCause::Busy,
            ("", 200) => RefusalCause::CutOff,
            (_, 500..) | ("InternalError", _) => RefusalCause::StoreFailed,
            _ => RefusalCause::Other,
        }
    }

    /// The reason, and the remedy.
    fn explain(&self, cause: RefusalCause, at: &ObjectUrl, settings: &Settings) -> String {
        let who = settings.who();
        match cause {
            RefusalCause::NoBucket => format!(
                "there is no bucket `{}` at {}; make it, or check its name and `AWS_ENDPOINT_URL`",
                at.bucket,
                settings.endpoint_url()
            ),
            RefusalCause::ClockSkew => format!(
                "this machine's clock and the store's differ by {} s, so it takes no signature; set the clock",
                self.ahead.unwrap_or_default().abs()
            ),
            RefusalCause::TokenExpired => format!(
                "the session token of {who} is no longer good; get a new one, then `tarn resume`"
            ),
            RefusalCause::BadSignature => format!(
                "the store does not take the signature of {who}; check key and secret, and `AWS_REGION` (now `{}`)",
                settings.region
            ),
            RefusalCause::Elsewhere => self.elsewhere(&settings.region),
            RefusalCause::Forbidden => format!(
                "{who} may not do that there; ask the bucket's owner for it, or use other keys"
            ),
            RefusalCause::Replaced => {
                "it was replaced while it was read; run again when nobody changes it".into()
            }
            RefusalCause::Vanished => {
                "it has vanished, or is shorter than it was; run again when nobody changes it"
                    .into()
            }
            RefusalCause::Contended => {
                "somebody else puts an object there at the same time; run again when nobody does"
                    .into()
            }
            RefusalCause::Full => "the store is full; free space there, then `tarn resume`".into(),
            RefusalCause::Busy => {
                "the store is busy; run again later, or with fewer nodes at once".into()
            }
            RefusalCause::CutOff => {
                "its answer was cut off; run again, or ask who runs the store".into()
            }
            RefusalCause::StoreFailed => {
                "the store has failed; run again later, or ask who runs it".into()
            }
            RefusalCause::Other => "the store refuses it".into(),
        }
    }

    /// Its kind, by which programs distinguish errors.
    fn kind(&self) -> Option<ObjectStoreError> {
        match (self.code.as_str(), self.status) {
            ("NoSuchBucket", _) => Some(ObjectStoreError::Missing),
            // A clock or a region that is wrong is no matter of rights, though stores answer so.
            ("RequestTimeTooSkewed" | "PermanentRedirect" | "TemporaryRedirect", _) => None,
            (_, 400 | 401 | 403) if self.skewed() => None,
            (
                "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired"
                | "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "InvalidSecurity",
                _,
            )
            | (_, 401 | 403) => Some(ObjectStoreError::Denied),
            _ => None,
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
    MoverError::new(RunErrorKind::Io, text)
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
