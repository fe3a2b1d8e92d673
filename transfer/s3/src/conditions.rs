//! Writes that replace nothing of others. An object takes the place only of the one that was seen there: stores that take
//! conditions (`If-None-Match: *`, `If-Match`) hold to that themselves; if it is not known whether one does, the present object
//! is looked at right before too. docs/internals/object-stores.md lists which stores take which.

use crate::S3Client;
use crate::request::{Condition, S3Request};
use crate::send::{Pauses, S3Reply, S3Sender};
use crate::support::Support;
use tarn_ports::{MoverError, ObjectMetadata, ObjectStore, ObjectStoreError, Replaces, Watch};
use tarn_types::event::RunErrorKind;
use tarn_types::object::ObjectUrl;

type Result<T> = std::result::Result<T, MoverError>;

const ABSENT: &str = "if-none-match";
const SAME: &str = "if-match";
/// An ETag that no object has.
const NO_ETAG: &str = "\"00000000000000000000000000000000\"";
/// Bytes that are put once more to try a condition, at most.
const MAX_PROBE: usize = 64 << 10;
/// Bytes that are sent at most, before its reply, to a store that may not take the condition.
const MAX_UNASKED: usize = 64 << 10;
/// How often a store may deny a condition that holds, before it counts as one without conditions.
const MAX_CONTRADICTIONS: u32 = 3;

/// The condition under which an object is put in the place of these.
fn condition(replaces: Replaces<'_>) -> Option<Condition> {
    match replaces {
        Replaces::Anything => None,
        Replaces::Nothing => Some((ABSENT, "*".into())),
        Replaces::Only(etag) => Some((SAME, format!("\"{etag}\""))),
    }
}

/// Has a request sent; the ETag of the object that it has made.
type ConditionalSend<'s> = dyn Fn(&S3Sender, &S3Request<'_>) -> Result<S3Reply<String>> + 's;
/// Whether an object is the one that the request puts, whose answer was lost.
type IsOurs<'s> = dyn Fn(&ObjectMetadata) -> Result<bool> + 's;

impl S3Client {
    /// Has an object made in the place of `replaces` only; its ETag.
    pub(crate) fn make_object(
        &self,
        request: &mut S3Request<'_>,
        replaces: Replaces<'_>,
        watch: &dyn Watch,
        send: &ConditionalSend<'_>,
        is_ours: &IsOurs<'_>,
    ) -> Result<String> {
        let at = request.at;
        let (mut replaces, mut contradictions, mut pauses) = (replaces, 0, Pauses::new());
        loop {
            let sender = self.sender(at)?;
            let known = |request: &S3Request<'_>, replaces| {
                condition(replaces).and_then(|(name, _)| sender.conditions.get(request, name))
            };
            if replaces != Replaces::Anything && known(request, replaces) != Some(Support::Enforced)
            {
                match self.look(at, watch)? {
                    Some(found) if replaces.allows(&found) => {}
                    Some(found) if is_ours(&found)? => return Ok(found.etag),
                    Some(_) => return Err(occupied(request)),
                    None => replaces = Replaces::Nothing,
                }
            }
            let known = known(request, replaces);
            request.condition = condition(replaces).filter(|_| known != Some(Support::Unsupported));
            request.expects_continue =
                request.condition.is_some() && known.is_none() && request.len() > MAX_UNASKED;
            let refusal = match send(&sender, request)? {
                S3Reply::Done(etag) if known < Some(Support::Probed) => {
                    return Ok(self.probe_condition(&sender, request, send).unwrap_or(etag));
                }
                S3Reply::Done(etag) => return Ok(etag),
                S3Reply::Refused(refusal) => refusal,
            };
            let Some((name, _)) = request.condition else {
                return Err(refusal.error(request, sender.settings()));
            };
            if refusal.is_unsupported() {
                sender
                    .conditions
                    .record(request, name, Support::Unsupported);
                continue;
            }
            if !refusal.is_unmet() && !refusal.is_crossed() {
                return Err(refusal.error(request, sender.settings()));
            }
            match self.look(at, watch)? {
                Some(found) if is_ours(&found)? => return Ok(found.etag),
                Some(found) if !replaces.allows(&found) => return Err(occupied(request)),
                _ if refusal.is_crossed() => {
                    return Err(refusal
                        .error(request, sender.settings())
                        .refused(ObjectStoreError::RestartUpload));
                }
                None if replaces != Replaces::Nothing => replaces = Replaces::Nothing,
                // It reports an object that is absent, or another one than is there.
                _ => {
                    contradictions += 1;
                    if contradictions == MAX_CONTRADICTIONS {
                        sender
                            .conditions
                            .record(request, name, Support::Unsupported);
                    }
                    pauses.pause(watch, refusal.error(request, sender.settings()))?;
                }
            }
        }
    }

    /// Finds out whether a store keeps to the condition with which it has just put a small object: the same is put once more, under a
    /// condition that does not hold. The ETag, if the store does not mind.
    fn probe_condition(
        &self,
        sender: &S3Sender,
        request: &mut S3Request<'_>,
        send: &ConditionalSend<'_>,
    ) -> Option<String> {
        let (name, _) = request.condition.take()?;
        if !request.is_put() || request.len() > MAX_PROBE {
            sender.conditions.record(request, name, Support::Accepted);
            return None;
        }
        // The first thread to record it tries it.
        if !sender.conditions.record(request, name, Support::Probed) {
            return None;
        }
        let value = if name == ABSENT { "*" } else { NO_ETAG };
        request.condition = Some((name, value.into()));
        match send(sender, request) {
            Ok(S3Reply::Done(etag)) => Some(etag),
            Ok(S3Reply::Refused(refusal)) if refusal.is_unmet() => {
                sender.conditions.record(request, name, Support::Enforced);
                None
            }
            // The object itself was put.
            _ => None,
        }
    }

    /// Removes an object, if it is the one with this ETag. Many stores pass over the condition, so it is looked at right before.
    pub(crate) fn remove_if_unchanged(
        &self,
        at: &ObjectUrl,
        etag: &str,
        watch: &dyn Watch,
    ) -> Result<()> {
        let mut request = S3Request::delete("remove", at);
        let (mut contradictions, mut pauses) = (0, Pauses::new());
        loop {
            match self.look(at, watch)? {
                None => return Ok(()),
                Some(found) if found.etag != etag => return Err(occupied(&request)),
                Some(_) => {}
            }
            let sender = self.sender(at)?;
            let known = sender.conditions.get(&request, SAME);
            request.condition =
                condition(Replaces::Only(etag)).filter(|_| known != Some(Support::Unsupported));
            let refusal = match sender.answered(&request, watch, &crate::remove(at))? {
                S3Reply::Done(_) => return Ok(()),
                S3Reply::Refused(refusal) if refusal.code == "NoSuchKey" => return Ok(()),
                S3Reply::Refused(refusal) => refusal,
            };
            if request.condition.is_none() {
                return Err(refusal.error(&request, sender.settings()));
            }
            if refusal.is_unsupported() || contradictions == MAX_CONTRADICTIONS {
                sender
                    .conditions
                    .record(&request, SAME, Support::Unsupported);
            } else if refusal.is_unmet() || refusal.is_crossed() {
                contradictions += 1;
                pauses.pause(watch, refusal.error(&request, sender.settings()))?;
            } else {
                return Err(refusal.error(&request, sender.settings()));
            }
        }
    }
}

/// Somebody else's object is there.
fn occupied(request: &S3Request<'_>) -> MoverError {
    let why = "somebody else has put an object there since tarn looked; it stays as it is. Move it away, or choose another place, then \
               run again";
    MoverError::new(RunErrorKind::Conflict, request.failed(why)).refused(ObjectStoreError::Occupied)
}
