//! Checks of a task that need no look at its files.

use crate::core::Core;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tarn_proto::local::{
    Allocation, Code, MAX_AFTER, MAX_FIRST, PathBytes, RequestError, SpaceSpec, TaskLocation,
    TaskOperation, TaskSpec, UserId,
};
use tarn_types::bounds::{MAX_NAME_BYTES, MAX_PATH_BYTES};
use tarn_types::grant::MAX_GRANTS;
use tarn_types::object::{ObjectUrl, shown};

/// The prefix of the names that tarn makes and removes in a space; programs may not use it.
pub const HIDDEN: &[u8] = b".tarn-";

fn invalid(text: impl Into<String>) -> RequestError {
    RequestError::new(Code::Invalid, text)
}

/// A name of a space or node.
///
/// # Errors
/// When it is not valid, with the reason.
pub fn name(what: &str, name: &str) -> Result<(), RequestError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(good) {
        return Err(invalid(format!(
            "`{}` is no name of a {what}: letters, digits, `-`, `_` and `.`, at most {MAX_NAME_BYTES}",
            name.escape_debug()
        )));
    }
    Ok(())
}

/// A path below a space's root; the root itself (empty) if `root` allows it.
///
/// # Errors
/// When it is not valid, with the reason.
pub fn below(path: &PathBytes, root: bool) -> Result<(), RequestError> {
    let bytes = &path.0;
    if bytes.is_empty() && root {
        return Ok(());
    }
    let bad = |c: &[u8]| matches!(c, b"" | b"." | b"..") || c.starts_with(HIDDEN);
    if bytes.len() > MAX_PATH_BYTES || bytes.contains(&0) || bytes.split(|b| *b == b'/').any(bad) {
        return Err(invalid(format!(
            "`{}` is no path below a dataspace: names joined by `/`, none of them empty, `.`, `..` or beginning with `.tarn-`, at most {MAX_PATH_BYTES} bytes",
            path.show()
        )));
    }
    Ok(())
}

/// A place outside, as it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExternalLocation {
    /// An absolute path.
    Path(Vec<u8>),
    /// An object of a store, or a tree of them.
    Object(ObjectUrl),
}

/// The kind of an external place.
///
/// # Errors
/// When it is no path, no `file://` URL and no `s3://` one.
pub fn outside(place: &PathBytes) -> Result<ExternalLocation, RequestError> {
    let path = Path::new(OsStr::from_bytes(&place.0));
    match ObjectUrl::of(path) {
        Some(at) => at.map(ExternalLocation::Object).map_err(|why| {
            let text = format!("`{}` is no place in an object store: {why}", shown(path));
            invalid(text)
        }),
        None => external(place).map(ExternalLocation::Path),
    }
}

/// The absolute path of an external place.
///
/// # Errors
/// When it is no path or `file://` URL.
fn external(place: &PathBytes) -> Result<Vec<u8>, RequestError> {
    let bytes = &place.0;
    let path = match bytes.strip_prefix(b"file://") {
        Some(rest) => {
            // RFC 8089: this host may be named so.
            let rest = match rest.strip_prefix(b"localhost") {
                Some(path) if path.starts_with(b"/") => path,
                _ => rest,
            };
            unescape(rest).ok_or_else(|| invalid(format!("`{}` has a broken %XX", place.show())))?
        }
        None if bytes.windows(3).any(|w| w == b"://") && !bytes.starts_with(b"/") => {
            return Err(RequestError::new(
                Code::Unsupported,
                format!(
                    "`{}`: only absolute paths, file:// and s3:// URLs can be read and written",
                    place.show()
                ),
            ));
        }
        None => bytes.clone(),
    };
    let dots = |c: &[u8]| matches!(c, b"." | b"..");
    let bad = path.split(|b| *b == b'/').any(dots) || path.ends_with(b"/") || path.contains(&0);
    if !path.starts_with(b"/") || path.len() > MAX_PATH_BYTES || bad {
        return Err(invalid(format!(
            "`{}` is no place outside: give an absolute path without `.` and `..`, or file:// and one",
            place.show()
        )));
    }
    Ok(path)
}

/// `%XX` of a URL.
fn unescape(url: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(url.len());
    let mut rest = url;
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            path.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            path.push(*first);
            rest = tail;
        }
    }
    Some(path)
}

/// Checks the specification of a space.
///
/// # Errors
/// When it is not valid, with the reason.
pub fn space(space: &str, spec: &SpaceSpec) -> Result<(), RequestError> {
    name("dataspace", space)?;
    if space.as_bytes().starts_with(HIDDEN) {
        return Err(invalid(format!(
            "`{space}`: names of dataspaces do not begin with `.tarn-`"
        )));
    }
    external(&spec.root).map_err(|why| {
        invalid(format!(
            "the root of `{space}` must be a folder's absolute path: {why}"
        ))
    })?;
    if spec.capacity == 0 || spec.quota > spec.capacity {
        return Err(invalid(format!(
            "dataspace `{space}`: the capacity must be more than 0, and a quota at most the capacity"
        )));
    }
    Ok(())
}

/// The use of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocationUse {
    Read,
    Write,
    Remove,
}

impl Core {
    /// All checks of a task that need no look at its files.
    pub(crate) fn check(&self, user: UserId, spec: &TaskSpec) -> Result<(), RequestError> {
        if spec.after.len() > MAX_AFTER {
            return Err(invalid(format!(
                "a task can follow at most {MAX_AFTER} others; let a task that does nothing follow more in turn"
            )));
        }
        match &spec.kind {
            TaskOperation::Nothing => Ok(()),
            TaskOperation::Copy { from, to } => self
                .place(user, from, LocationUse::Read)
                .and_then(|()| self.place(user, to, LocationUse::Write)),
            TaskOperation::Move { from, to } => self
                .place(user, from, LocationUse::Remove)
                .and_then(|()| self.place(user, to, LocationUse::Write)),
            TaskOperation::Remove { at } => self.place(user, at, LocationUse::Remove),
            TaskOperation::Allocate { at, how, .. } => {
                if let Allocation::Make { grants, .. } = how
                    && grants.len() > MAX_GRANTS
                {
                    return Err(invalid(format!(
                        "an access list has at most {MAX_GRANTS} lines"
                    )));
                }
                if let Allocation::MakeWith { first } = how
                    && first.len() > MAX_FIRST
                {
                    return Err(invalid(format!(
                        "a partition is made with at most {MAX_FIRST} bytes of data"
                    )));
                }
                if !matches!(at, TaskLocation::Space { .. } | TaskLocation::Node { .. }) {
                    return Err(invalid(
                        "a partition is in a dataspace: name it as its place",
                    ));
                }
                self.place(user, at, LocationUse::Write)
            }
        }?;
        let (from, to) = spec.kind.places();
        let memory = |p: Option<&TaskLocation>| matches!(p, Some(TaskLocation::Memory { .. }));
        if spec.durable && (memory(from) || memory(to)) {
            return Err(invalid(
                "a task on memory cannot be durable: the memory is gone after a restart",
            ));
        }
        if memory(from) && memory(to) {
            return Err(invalid(
                "memory to memory is a plain copy in the program: use memcpy",
            ));
        }
        if spec.durable && spec.after.iter().any(|id| !self.is_durable(*id)) {
            return Err(invalid(
                "a durable task can only follow durable tasks: others are forgotten at a restart",
            ));
        }
        Ok(())
    }

    /// Objects are reached with the keys of the user that tarnd runs as, which are nobody else's.
    fn object(&self, user: UserId, at: &ObjectUrl, what: LocationUse) -> Result<(), RequestError> {
        if user != self.config.owner {
            let text = format!(
                "{at}: this tarnd has the keys of user {}, which user {user} may not use; use your own tarnd to reach the store",
                self.config.owner
            );
            return Err(RequestError::new(Code::Denied, text));
        }
        match what {
            LocationUse::Remove => {
                let text = format!(
                    "{at}: a task removes nothing from an object store, where it could not be put aside first; copy it, and remove \
                     it with the store's own tools"
                );
                Err(RequestError::new(Code::Unsupported, text))
            }
            LocationUse::Write if at.key.is_empty() => Err(invalid(format!(
                "{at} is a whole bucket, which nothing replaces: name a place in it, such as {at}result/"
            ))),
            LocationUse::Read | LocationUse::Write => Ok(()),
        }
    }

    fn place(
        &self,
        user: UserId,
        place: &TaskLocation,
        what: LocationUse,
    ) -> Result<(), RequestError> {
        match place {
            TaskLocation::Space { name, path } => {
                below(path, what == LocationUse::Read)?;
                let Some(space) = self.spaces.get(name) else {
                    return Err(RequestError::new(
                        Code::NotFound,
                        format!(
                            "there is no dataspace `{}` on this node",
                            name.escape_debug()
                        ),
                    ));
                };
                let access = space.access(&self.config, user);
                if what == LocationUse::Read && access.read
                    || what == LocationUse::Write && access.write
                    || what == LocationUse::Remove && access.read && access.write
                {
                    return Ok(());
                }
                let verb = if what == LocationUse::Read {
                    "read"
                } else {
                    "write"
                };
                Err(RequestError::new(
                    Code::Denied,
                    format!("user {user} may not {verb} dataspace `{name}`"),
                ))
            }
            TaskLocation::Memory { .. } if what == LocationUse::Remove => Err(invalid(
                "memory cannot be moved or removed: copy it, then unregister it",
            )),
            TaskLocation::Memory { .. } => Ok(()),
            TaskLocation::External(place) => match outside(place)? {
                ExternalLocation::Path(_) => Ok(()),
                ExternalLocation::Object(at) => self.object(user, &at, what),
            },
            TaskLocation::Node { node, space, path } => {
                name("node", node)?;
                name("dataspace", space)?;
                below(path, what == LocationUse::Read)?;
                if self.config.nodes.contains_key(node) {
                    return Ok(());
                }
                let text = match self.config.nodes.is_empty() {
                    true => format!(
                        "node `{node}` cannot be reached: this tarnd knows no other nodes (`--peers`)"
                    ),
                    false => format!("node `{node}` is not one that this tarnd knows"),
                };
                Err(RequestError::new(Code::Unsupported, text))
            }
        }
    }
}
