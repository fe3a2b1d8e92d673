//! An object, or a stretch of it, being read. A connection that is cut is made again and continues where it was.

use crate::S3Client;
use crate::answer;
use crate::request::S3Request;
use crate::send::{Pauses, S3Response, S3Sender, error_text};
use std::io::Read;
use std::ops::Range;
use tarn_ports::{MoverError, ObjectBody, Watch};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;
use ureq::BodyReader;

type Result<T> = std::result::Result<T, MoverError>;

pub(crate) struct Body<'a> {
    /// Keys may be others by the time that it continues.
    client: &'a S3Client,
    watch: &'a dyn Watch,
    at: ObjectUrl,
    /// The range still to come.
    left: Range<u64>,
    etag: String,
    size: u64,
    reader: BodyReader<'static>,
    /// Of the tries without a byte between them.
    pauses: Pauses,
}

/// A range of an object, open for reading.
struct OpenObjectRange {
    etag: String,
    size: u64,
    reader: BodyReader<'static>,
}

impl<'a> Body<'a> {
    pub(crate) fn open(
        client: &'a S3Client,
        at: &ObjectUrl,
        range: Range<u64>,
        etag: Option<&str>,
        watch: &'a dyn Watch,
    ) -> Result<Self> {
        let opened = opened(&*client.sender(at)?, at, &range, etag, watch)?;
        Ok(Self {
            client,
            watch,
            at: at.clone(),
            left: range,
            etag: opened.etag,
            size: opened.size,
            reader: opened.reader,
            pauses: Pauses::new(),
        })
    }

    /// Goes on with a new request. It must be the same object.
    fn again(&mut self, why: &str) -> Result<()> {
        let text = format!("cannot read {}: {why}; run again", self.at);
        self.pauses
            .pause(self.watch, MoverError::new(RunErrorKind::Io, text))?;
        let opened = opened(
            &*self.client.sender(&self.at)?,
            &self.at,
            &self.left,
            Some(&self.etag),
            self.watch,
        )?;
        self.reader = opened.reader;
        Ok(())
    }
}

impl ObjectBody for Body<'_> {
    fn etag(&self) -> &str {
        &self.etag
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut got = 0;
        while got < buffer.len() {
            match self.reader.read(&mut buffer[got..]) {
                Ok(0) if self.left.is_empty() => {
                    let text = format!("{}: more was read than was asked for", self.at);
                    return Err(MoverError::new(RunErrorKind::Io, text));
                }
                Ok(0) => self.again("the store has ended the connection before all had come")?,
                Ok(n) => {
                    got += n;
                    self.left.start += n as u64;
                    self.pauses = Pauses::new();
                }
                Err(e) => {
                    let why = match e.get_ref().and_then(|e| e.downcast_ref::<ureq::Error>()) {
                        Some(error) => error_text(error),
                        None => e.to_string(),
                    };
                    self.again(&format!("the connection was lost ({why})"))?;
                }
            }
        }
        Ok(())
    }
}

fn opened(
    sender: &S3Sender,
    at: &ObjectUrl,
    range: &Range<u64>,
    etag: Option<&str>,
    watch: &dyn Watch,
) -> Result<OpenObjectRange> {
    let mut request = S3Request::get("read", at);
    let last = range.end.saturating_sub(1);
    request
        .headers
        .push(("range".into(), format!("bytes={}-{last}", range.start)));
    if let Some(etag) = etag {
        request
            .headers
            .push(("if-match".into(), format!("\"{etag}\"")));
    }
    let done = sender.done(&request, watch, &|bucket, keys| {
        crate::signed(bucket.get_object(keys, &at.key), &[])
    })?;
    let is = done.etag(at)?;
    if etag.is_some_and(|etag| etag != is) {
        // A store that does not know `If-Match`.
        return Err(changed(at, "was replaced while it was read"));
    }
    let Some((from, size)) = stretch(&done) else {
        return Err(answer::not_understood(
            at,
            "it does not state which bytes these are",
        ));
    };
    if from.start != range.start || from.end < range.end.min(size) {
        return Err(answer::not_understood(
            at,
            "these are not the bytes that were asked for",
        ));
    }
    if size < range.end {
        return Err(changed(at, "is shorter than it was"));
    }
    // No byte more than was requested, however many are sent.
    let limit = range.end - range.start;
    let reader = done.into_body().into_with_config().limit(limit).reader();
    Ok(OpenObjectRange {
        etag: is,
        size,
        reader,
    })
}

/// Which bytes an answer has, and the size of the whole.
fn stretch(done: &S3Response) -> Option<(Range<u64>, u64)> {
    let length: Option<u64> = done.header("content-length").and_then(|n| n.parse().ok());
    if done.status() == 200 {
        return length.map(|size| (0..size, size));
    }
    let range = done.header("content-range")?.strip_prefix("bytes ")?;
    let (range, size) = range.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1)?;
    let whole = length.is_none_or(|n| end.checked_sub(first) == Some(n));
    whole.then_some((first..end, size.parse().ok()?))
}

fn changed(at: &ObjectUrl, how: &str) -> MoverError {
    MoverError::new(
        RunErrorKind::SourceChanged,
        format!("the object {at} {how}; run again when nobody changes it"),
    )
}
