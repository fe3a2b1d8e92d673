//! L3: object stores, spoken to by the S3 protocol: Amazon's, Ceph's, Swift's, MinIO's and others'. docs/guide/object-stores.md.
//!
//! [`settings`] finds the store and the keys; [`send`] sends a [`request`], again and again where that may help; [`answer`] reads
//! the reply; [`conditions`] makes it replace nothing of others, as far as the store is known to keep to that ([`support`]);
//! [`body`] is an object being read. Requests are signed by `rusty-s3`, in their URLs: none is ever shown.

mod answer;
mod body;
mod conditions;
mod request;
mod send;
mod settings;
mod support;

use answer::S3ReplyError;
use base64::Engine;
use body::Body;
use md5::{Digest, Md5};
use request::S3Request;
use rusty_s3::actions::{CompleteMultipartUpload, CreateMultipartUpload, ListObjectsV2, ListParts};
use rusty_s3::{Bucket, Credentials, S3Action};
use send::{S3Reply, S3Sender};
use settings::{Settings, SettingsError};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_ports::{
    MoverError, ObjectBody, ObjectMetadata, ObjectStore, ObjectStoreError, Replaces, Tags, Upload,
    Watch,
};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;

type Result<T> = std::result::Result<T, MoverError>;

/// How long a signature holds: longer than any request waits to be sent.
const SIGNED_FOR: Duration = Duration::from_secs(3600);
/// The prefix of the names of tags, as headers.
const TAG: &str = "x-amz-meta-";

/// Stores that one process speaks to at once: profiles that its URLs name.
const MAX_PROFILES: usize = 64;

/// How long settings hold before they are looked at again: a tarnd or a long run outlives session tokens.
const SETTINGS_HOLD: Duration = Duration::from_secs(5);

/// Says what a variable is, when a store is first needed.
type Var = dyn Fn(&str) -> Option<OsString> + Send + Sync;
/// The sender of a set of settings, and the time at which these were read.
type CachedSender = (Instant, Arc<S3Sender>);

/// A client of the stores that variables, the user's files and the profiles of URLs name.
pub struct S3Client {
    var: Box<Var>,
    /// The profile for URLs that name none; it precedes the variables.
    profile: Option<String>,
    /// The store where nothing else names one.
    endpoint: Option<String>,
    /// By profile; without a name, the sender of all other settings.
    made: Mutex<BTreeMap<Option<String>, CachedSender>>,
}

impl std::fmt::Debug for S3Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its settings and senders are not shown.
        f.write_str("S3Client")
    }
}

impl S3Client {
    /// A client with the settings of this process's environment and its user's files, looked at when they are first needed.
    pub fn of_environment() -> Self {
        Self::new(|name| std::env::var_os(name))
    }

    /// A client with the settings of these variables and of the files that they name, looked at when they are first needed.
    pub fn new(var: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        Self {
            var: Box::new(var),
            profile: None,
            endpoint: None,
            made: Mutex::default(),
        }
    }

    /// A client with the files in this home and no variables: the profile is `default` where a URL names none, the store the one
    /// at this endpoint where the profile names none.
    pub fn of_home(home: PathBuf, endpoint: Option<String>) -> Self {
        Self {
            profile: Some("default".into()),
            endpoint,
            ..Self::new(move |name| (name == "HOME").then(|| home.clone().into()))
        }
    }

    /// The same, shared.
    pub fn shared(self) -> Arc<dyn ObjectStore> {
        Arc::new(self)
    }

    /// Whether the store of a place and the keys for it are known. No request is sent.
    ///
    /// # Errors
    /// The missing setting.
    pub fn knows(&self, at: &ObjectUrl) -> Result<()> {
        self.sender(at).map(drop)
    }

    /// The sender of the current settings: with its connections, while they stay the same.
    fn sender(&self, at: &ObjectUrl) -> Result<Arc<S3Sender>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let held = made.get(&at.profile);
        if let Some((when, sender)) = held
            && when.elapsed() < SETTINGS_HOLD
        {
            return Ok(Arc::clone(sender));
        }
        let sender = match (self.made_now(at, held), held) {
            (Ok(sender), _) => sender,
            // A file that is just being written is read the next time.
            (Err(_), Some((_, sender))) => Arc::clone(sender),
            (Err(e), None) => return Err(e),
        };
        if held.is_none() && made.len() >= MAX_PROFILES {
            let oldest = made.iter().min_by_key(|(_, (when, _))| *when);
            let oldest = oldest.map(|(profile, _)| profile.clone());
            oldest.and_then(|profile| made.remove(&profile));
        }
        made.insert(at.profile.clone(), (Instant::now(), Arc::clone(&sender)));
        Ok(sender)
    }

    fn made_now(&self, at: &ObjectUrl, held: Option<&CachedSender>) -> Result<Arc<S3Sender>> {
        let failed = |e: SettingsError| MoverError::new(RunErrorKind::Io, e.to_string());
        let profile = at.profile.as_ref().or(self.profile.as_ref());
        let settings = Settings::find(&*self.var, profile.map(String::as_str))
            .map_err(|why| failed(why).refused(ObjectStoreError::Denied))?
            .or_endpoint(self.endpoint.as_deref());
        match held {
            Some((_, sender)) if *sender.settings() == settings => Ok(Arc::clone(sender)),
            _ => S3Sender::new(settings).map(Arc::new).map_err(failed),
        }
    }
}

/// The tags that go along, as headers.
fn headers_of(tags: &Tags) -> Vec<(String, String)> {
    let header = |(name, value): &(String, String)| (format!("{TAG}{name}"), value.clone());
    tags.iter().map(header).collect()
}

/// Has an action signed with these headers, which go along.
fn signed<'a, A: S3Action<'a>>(mut action: A, headers: &[(String, String)]) -> String {
    for (name, value) in headers {
        action.headers_mut().insert(name.clone(), value.clone());
    }
    action.sign(SIGNED_FOR).into()
}

fn checksum(bytes: &[u8]) -> (String, String) {
    let sum = base64::engine::general_purpose::STANDARD.encode(Md5::digest(bytes));
    ("content-md5".into(), sum)
}

/// Objects of one listing: a caller that holds them in memory has its own, smaller bound.
const MAX_LISTED: u64 = 100_000_000;

/// How far a listing is. Stores give keys in their order, so a page that begins before the end of the one before leads back.
#[derive(Default)]
struct Listing {
    last: Option<String>,
    listed: u64,
}

impl Listing {
    /// Whether a page continues from the one before.
    fn goes_on(&mut self, (found, next): (&[ObjectMetadata], Option<&str>)) -> bool {
        let ends = [found.first(), found.last()].map(|f| f.map(|f| &f.key));
        let is_further = match (&self.last, ends[0]) {
            (Some(last), Some(first)) => first > last,
            // One without objects, of which another is to follow, would never end.
            (_, None) => next.is_none(),
            (None, Some(_)) => true,
        };
        self.last = ends[1].cloned().or(self.last.take());
        self.listed += found.len() as u64;
        is_further && self.listed <= MAX_LISTED
    }
}

/// A page of a listing: its objects, and where the next one begins.
type Page = (Vec<ObjectMetadata>, Option<String>);

fn page(bucket: &Bucket, keys: Option<&Credentials>, prefix: &str, from: Option<&str>) -> String {
    let mut action = ListObjectsV2::new(bucket, keys);
    action.with_prefix(prefix);
    if let Some(token) = from {
        action.with_continuation_token(token);
    }
    signed(action, &[])
}

fn parsed(at: &ObjectUrl, text: &str) -> Result<Page> {
    let odd = |what: &str| {
        let text = format!(
            "the store's list of {at} cannot be understood ({what}): is `AWS_ENDPOINT_URL` that of a store that speaks S3?"
        );
        MoverError::new(RunErrorKind::Io, text)
    };
    let page = ListObjectsV2::parse_response(text).map_err(|e| odd(&e.to_string()))?;
    let found = page.contents.into_iter().map(|c| {
        let when = c.last_modified.as_deref().and_then(answer::iso_seconds);
        Ok(ObjectMetadata {
            size: c.size.ok_or_else(|| odd("a size is missing"))?,
            etag: answer::plain_etag(c.etag.as_deref().unwrap_or_default()),
            modified: when.ok_or_else(|| odd("a time is missing"))?,
            key: c.key,
            tags: Tags::new(),
        })
    });
    Ok((found.collect::<Result<_>>()?, page.next_continuation_token))
}

impl ObjectStore for S3Client {
    fn list(
        &self,
        at: &ObjectUrl,
        watch: &dyn Watch,
        each: &mut dyn FnMut(ObjectMetadata) -> Result<()>,
    ) -> Result<()> {
        let sender = self.sender(at)?;
        let mut token: Option<String> = None;
        let mut listing = Listing::default();
        loop {
            let request = S3Request::get("list", at);
            let answer = sender.done_text(&request, watch, &|bucket, keys| {
                page(bucket, keys, &at.key, token.as_deref())
            })?;
            let (found, next) = parsed(at, &answer)?;
            if !listing.goes_on((&found, next.as_deref())) {
                let text =
                    format!("the store's list of {at} stops: try again, or ask its administrator");
                return Err(MoverError::new(RunErrorKind::Io, text));
            }
            found.into_iter().try_for_each(&mut *each)?;
            match next {
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn look(&self, at: &ObjectUrl, watch: &dyn Watch) -> Result<Option<ObjectMetadata>> {
        let request = S3Request::head("look at", at);
        let answered = self
            .sender(at)?
            .answered(&request, watch, &|bucket, keys| {
                signed(bucket.head_object(keys, &at.key), &[])
            })?;
        match answered {
            S3Reply::Done(done) => Ok(Some(done.found(at)?)),
            S3Reply::Refused(refusal) if refusal.status == 404 => Ok(None),
            S3Reply::Refused(refusal) => Err(refusal.error(&request, self.sender(at)?.settings())),
        }
    }

    fn open<'a>(
        &'a self,
        at: &ObjectUrl,
        range: Range<u64>,
        etag: Option<&str>,
        watch: &'a dyn Watch,
    ) -> Result<Box<dyn ObjectBody + 'a>> {
        let body = Body::open(self, at, range, etag, watch)?;
        Ok(Box::new(body))
    }

    fn put(
        &self,
        at: &ObjectUrl,
        bytes: &[u8],
        tags: &Tags,
        replaces: Replaces<'_>,
        watch: &dyn Watch,
    ) -> Result<String> {
        let headers = headers_of(tags);
        let mut request = S3Request::put("put", at, bytes);
        request.headers = headers.clone();
        request.headers.push(checksum(bytes));
        let send = |sender: &S3Sender, request: &S3Request<'_>| {
            let answered = sender.answered(request, watch, &|bucket, keys| {
                signed(bucket.put_object(keys, &at.key), &headers)
            })?;
            Ok(match answered {
                S3Reply::Done(done) => S3Reply::Done(done.etag(at)?),
                S3Reply::Refused(refusal) => S3Reply::Refused(refusal),
            })
        };
        let is_ours = |found: &ObjectMetadata| self.is_put(at, found, (bytes, tags), watch);
        self.make_object(&mut request, replaces, watch, &send, &is_ours)
    }

    fn begin(&self, at: &ObjectUrl, tags: &Tags, watch: &dyn Watch) -> Result<Upload> {
        let headers = headers_of(tags);
        let mut request = S3Request::post("begin an upload of", at, b"");
        request.headers = headers.clone();
        let text = self
            .sender(at)?
            .done_text(&request, watch, &|bucket, keys| {
                signed(bucket.create_multipart_upload(keys, &at.key), &headers)
            })?;
        let begun = CreateMultipartUpload::parse_response(&text)
            .map_err(|e| answer::not_understood(at, &e.to_string()))?;
        Ok(Upload {
            at: at.clone(),
            id: begun.upload_id().to_owned(),
        })
    }

    fn part(
        &self,
        upload: &Upload,
        number: u16,
        bytes: &[u8],
        watch: &dyn Watch,
    ) -> Result<String> {
        let at = &upload.at;
        let mut request = S3Request::put("put a part of", at, bytes);
        request.headers.push(checksum(bytes));
        let done = self.sender(at)?.done(&request, watch, &|bucket, keys| {
            signed(bucket.upload_part(keys, &at.key, number, &upload.id), &[])
        })?;
        done.etag(at)
    }

    fn parts(&self, upload: &Upload, watch: &dyn Watch) -> Result<Option<BTreeMap<u16, String>>> {
        let at = &upload.at;
        let sender = self.sender(at)?;
        let request = S3Request::get("list the parts of", at);
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let sign = |bucket: &Bucket, keys: Option<&Credentials>| {
                let mut action = ListParts::new(bucket, keys, &at.key, &upload.id);
                if let Some(number) = after {
                    action.set_part_number_marker(number);
                }
                signed(action, &[])
            };
            let text = match sender.text(&request, watch, &sign, &S3Reply::Done)? {
                S3Reply::Done(text) => text,
                S3Reply::Refused(refusal) if refusal.code == "NoSuchUpload" => return Ok(None),
                S3Reply::Refused(refusal) => return Err(refusal.error(&request, sender.settings())),
            };
            let page = ListParts::parse_response(&text)
                .map_err(|e| answer::not_understood(at, &e.to_string()))?;
            let parts = page.parts.iter();
            all.extend(parts.map(|p| (p.number, answer::plain_etag(&p.etag))));
            match page.next_part_number_marker {
                // One that leads back would never end.
                Some(next) if after.is_none_or(|last| next > last) => after = Some(next),
                _ => return Ok(Some(all)),
            }
        }
    }

    fn is_part(&self, etag: &str, bytes: &[u8]) -> bool {
        let sum = Md5::digest(bytes);
        let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
        etag.eq_ignore_ascii_case(&sum)
    }

    fn complete(
        &self,
        upload: &Upload,
        parts: &[String],
        replaces: Replaces<'_>,
        watch: &dyn Watch,
    ) -> Result<String> {
        let at = &upload.at;
        let quoted: Vec<String> = parts.iter().map(|p| format!("\"{p}\"")).collect();
        let etags = || quoted.iter().map(String::as_str);
        let key = &at.key;
        let action =
            |bucket, keys| CompleteMultipartUpload::new(bucket, keys, key, &upload.id, etags());
        let body = action(&self.sender(at)?.bucket(at)?, None).body();
        let mut request = S3Request::post("complete the upload of", at, body.as_bytes()).patient();
        let sign = |bucket: &Bucket, keys: Option<&Credentials>| {
            let quoted = quoted.iter().map(String::as_str);
            signed(
                CompleteMultipartUpload::new(bucket, keys, key, &upload.id, quoted),
                &[],
            )
        };
        // If an error occurs after the first byte of the answer, the answer itself describes it.
        let read = |text: String| match answer::etag_of_completed(&text) {
            Some(etag) => S3Reply::Done(etag),
            None => S3Reply::Refused(S3ReplyError::in_answer(&text)),
        };
        let send = |sender: &S3Sender, request: &S3Request<'_>| {
            Ok(match sender.text(request, watch, &sign, &read)? {
                // It was completed by a request whose answer was lost: the caller looks at the object that is there.
                S3Reply::Refused(refusal) if refusal.code == "NoSuchUpload" => {
                    match self.look(at, watch)? {
                        Some(found) => S3Reply::Done(found.etag),
                        None => S3Reply::Refused(refusal),
                    }
                }
                answer => answer,
            })
        };
        // The caller knows the content that the object was to have.
        self.make_object(&mut request, replaces, watch, &send, &|_| Ok(false))
    }

    fn abort(&self, upload: &Upload, watch: &dyn Watch) -> Result<()> {
        let at = &upload.at;
        let request = S3Request::delete("abort the upload of", at);
        self.gone(at, &request, watch, &|bucket, keys| {
            signed(
                bucket.abort_multipart_upload(keys, &at.key, &upload.id),
                &[],
            )
        })
    }

    fn remove(&self, at: &ObjectUrl, etag: Option<&str>, watch: &dyn Watch) -> Result<()> {
        match etag {
            Some(etag) => self.remove_if_unchanged(at, etag, watch),
            None => self.gone(at, &S3Request::delete("remove", at), watch, &remove(at)),
        }
    }
}

/// Signs that an object is to be removed.
fn remove(at: &ObjectUrl) -> impl Fn(&Bucket, Option<&Credentials>) -> String + '_ {
    |bucket, keys| signed(bucket.delete_object(keys, &at.key), &[])
}

impl S3Client {
    /// Whether an object is the intended one, with all that was to be kept with it.
    fn is_put(
        &self,
        at: &ObjectUrl,
        found: &ObjectMetadata,
        (bytes, tags): (&[u8], &Tags),
        watch: &dyn Watch,
    ) -> Result<bool> {
        if found.size != bytes.len() as u64 || !tags.iter().all(|tag| found.tags.contains(tag)) {
            return Ok(false);
        }
        if bytes.is_empty() || self.is_part(&found.etag, bytes) {
            return Ok(true);
        }
        // Not every store's ETags show it.
        let mut is = vec![0; bytes.len()];
        let mut body = Body::open(self, at, 0..found.size, Some(&found.etag), watch)?;
        body.fill(&mut is)?;
        Ok(is == bytes)
    }

    /// Removes what may be gone already.
    fn gone(
        &self,
        at: &ObjectUrl,
        request: &S3Request<'_>,
        watch: &dyn Watch,
        sign: &send::Sign<'_>,
    ) -> Result<()> {
        let sender = self.sender(at)?;
        match sender.answered(request, watch, sign)? {
            S3Reply::Done(_) => Ok(()),
            S3Reply::Refused(r) if matches!(r.code.as_str(), "NoSuchKey" | "NoSuchUpload") => {
                Ok(())
            }
            S3Reply::Refused(refusal) => Err(refusal.error(request, sender.settings())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: &str) -> ObjectMetadata {
        ObjectMetadata {
            key: key.into(),
            size: 0,
            etag: String::new(),
            modified: 0,
            tags: Tags::new(),
        }
    }

    #[test]
    fn a_listing_goes_on_only_forwards_and_not_for_ever() {
        let mut listing = Listing::default();
        let (a, b) = ([found("a"), found("b")], [found("c")]);
        assert!(listing.goes_on((&a, Some("t"))) && listing.goes_on((&b, Some("u"))));
        // The last one may have none.
        assert!(listing.goes_on((&[], None)));
        assert!(!listing.goes_on((&[], Some("v"))) && !listing.goes_on((&b, Some("v"))));
        listing.listed = MAX_LISTED;
        assert!(!listing.goes_on((&[found("z")], None)));
    }
}
