//! Names of objects in an object store: `s3://BUCKET/KEY`, `s3://PROFILE@BUCKET/KEY`.

use crate::manifest::PathError;
use std::fmt;
use std::path::Path;

/// The prefix of the name of a place in an object store.
pub const SCHEME: &str = "s3://";
/// Bytes of a key (Amazon S3's bound, which others keep to).
pub const MAX_KEY_BYTES: usize = 1024;
/// Bytes of a profile's name.
const MAX_PROFILE_BYTES: usize = 64;

/// An object, or a tree of objects: all whose keys begin with the key, which then is empty or ends with `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectUrl {
    /// The user's profile, which gives the store and the keys; without one, other settings do.
    pub profile: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// The object's key, or the prefix of a tree's keys.
    pub key: String,
}

/// Whether a path names a place in an object store.
pub fn is_object(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .starts_with(SCHEME.as_bytes())
}

/// A path for messages about an error in it: without the text that may be a key.
pub fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    let hidden = text.strip_prefix(SCHEME).and_then(|rest| {
        let (before, after) = rest.rsplit_once('@').unwrap_or((rest, ""));
        before.contains(':').then_some(after)
    });
    match hidden {
        Some(after) => format!("{SCHEME}...@{after}"),
        None => text.into_owned(),
    }
}

/// Why a text names no place in an object store, or a key cannot be one. Text that may be half of a key to a store is not shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectUrlError {
    /// A path has other bytes than text.
    #[error("a key is UTF-8 text")]
    NoText,
    /// It is the URL of something else.
    #[error("it does not begin with `{SCHEME}`")]
    Scheme,
    /// The text before `@` is no name of a profile.
    #[error(
        "before `@` write the name of a profile, never a key: 1 to {MAX_PROFILE_BYTES} letters, digits, `.`, `-` and `_`"
    )]
    Profile,
    /// There is a `:` in the bucket.
    #[error("a bucket has no `:` in its name, and a URL contains no key")]
    Colon,
    /// A bucket cannot be called so.
    #[error("`{0}` is no name of a bucket: 3 to 255 letters, digits, `.`, `-` and `_`")]
    Bucket(String),
    /// The key is no path of a manifest.
    #[error("the key `{}`: {fault}", .key.escape_debug())]
    Path {
        /// The key.
        key: String,
        /// The error in it.
        fault: PathError,
    },
    /// The name of an entry has other bytes than text.
    #[error("its name is no UTF-8 text, as keys are")]
    Name,
    /// The key is too long.
    #[error("a key has at most {MAX_KEY_BYTES} bytes")]
    TooLong,
    /// The key has a character that listings do not give back.
    #[error("a key with the control character `{}` does not come back from every store", .0.escape_debug())]
    Control(char),
}

impl ObjectUrl {
    /// The place that a path names, if it is one in an object store.
    ///
    /// # Errors
    /// As for [`ObjectUrl::parse`].
    pub fn of(path: &Path) -> Option<Result<Self, ObjectUrlError>> {
        is_object(path).then(|| match path.to_str() {
            Some(text) => Self::parse(text),
            None => Err(ObjectUrlError::NoText),
        })
    }

    /// Reads `s3://BUCKET/KEY` or `s3://PROFILE@BUCKET/KEY`. A tree's ends with `/`; the bucket alone is a tree.
    ///
    /// # Errors
    /// The error in the text.
    pub fn parse(text: &str) -> Result<Self, ObjectUrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(ObjectUrlError::Scheme)?;
        let (place, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (profile, bucket) = match place.rsplit_once('@') {
            Some((profile, bucket)) => (Some(checked_profile(profile)?), bucket),
            None => (None, place),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
        // Half of a key, perhaps.
        if bucket.contains(':') {
            return Err(ObjectUrlError::Colon);
        }
        if !(3..=255).contains(&bucket.len())
            || !bucket.bytes().all(allowed)
            || bucket.starts_with('.')
        {
            return Err(ObjectUrlError::Bucket(bucket.into()));
        }
        let path = key.strip_suffix('/').unwrap_or(key);
        if !key.is_empty() {
            crate::manifest::check_path(path.as_bytes()).map_err(|fault| {
                let key = key.to_owned();
                ObjectUrlError::Path { key, fault }
            })?;
        }
        check_key(key)?;
        Ok(Self {
            profile,
            bucket: bucket.into(),
            key: key.into(),
        })
    }

    /// Whether it names a tree.
    pub fn is_tree(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// The tree of this name, with or without a `/` at its end.
    #[must_use]
    pub fn tree(mut self) -> Self {
        if !self.is_tree() {
            self.key.push('/');
        }
        self
    }

    /// An object's own name: the text behind the last `/` of its key.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or(&self.key)
    }

    /// The name of a copy of it: the last name in its key, or the bucket.
    pub fn title(&self) -> &str {
        let key = self.key.strip_suffix('/').unwrap_or(&self.key);
        let name = key.rsplit('/').next().unwrap_or(key);
        if name.is_empty() { &self.bucket } else { name }
    }

    /// Whether one of both is in the other, or is it.
    pub fn is_in_way_of(&self, other: &Self) -> bool {
        let holds = |a: &Self, b: &Self| a.key == b.key || a.is_tree() && b.key.starts_with(&a.key);
        (&self.profile, &self.bucket) == (&other.profile, &other.bucket)
            && (holds(self, other) || holds(other, self))
    }

    /// The object that a path of a tree names; of an object, itself.
    ///
    /// # Errors
    /// When the path can be no key.
    pub fn at(&self, path: &[u8]) -> Result<Self, ObjectUrlError> {
        let key = match (self.is_tree(), std::str::from_utf8(path)) {
            (false, _) => self.key.clone(),
            (true, Ok(path)) => format!("{}{path}", self.key),
            (true, Err(_)) => return Err(ObjectUrlError::Name),
        };
        check_key(&key)?;
        Ok(self.object(key))
    }

    /// The object whose key is this one's with something after it.
    ///
    /// # Errors
    /// When that can be no key.
    pub fn beside(&self, after: &str) -> Result<Self, ObjectUrlError> {
        let key = format!("{}{after}", self.key);
        check_key(&key)?;
        Ok(self.object(key))
    }

    /// The object of this key in the same bucket.
    #[must_use]
    pub fn object(&self, key: String) -> Self {
        Self {
            key,
            ..self.clone()
        }
    }
}

/// Checks a profile's name. The error does not show it: it may be a key that somebody has written there.
fn checked_profile(profile: &str) -> Result<String, ObjectUrlError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
    match (1..=MAX_PROFILE_BYTES).contains(&profile.len()) && profile.bytes().all(allowed) {
        true => Ok(profile.into()),
        false => Err(ObjectUrlError::Profile),
    }
}

/// Whether stores take a key, and give it back in a listing.
fn check_key(key: &str) -> Result<(), ObjectUrlError> {
    if key.len() > MAX_KEY_BYTES {
        return Err(ObjectUrlError::TooLong);
    }
    match key.chars().find(|c| c.is_control()) {
        Some(c) => Err(ObjectUrlError::Control(c)),
        None => Ok(()),
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(profile) = &self.profile {
            write!(f, "{profile}@")?;
        }
        write!(f, "{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_place() {
        let tree = ObjectUrl::parse("s3://bucket/a/b/").unwrap();
        assert!(tree.is_tree() && ObjectUrl::parse("s3://bucket").unwrap().is_tree());
        assert_eq!(
            tree.at(b"c d/+%").unwrap().to_string(),
            "s3://bucket/a/b/c d/+%"
        );
        let one = ObjectUrl::parse("s3://bucket/a/b").unwrap();
        assert!(!one.is_tree());
        assert_eq!((one.name(), one.at(b"b").unwrap()), ("b", one.clone()));
        assert_eq!(one.clone().tree(), tree);
        assert_eq!((tree.title(), one.title()), ("b", "b"));
        let at = |text: &str| ObjectUrl::parse(text).unwrap();
        assert_eq!(
            one.beside(".new").unwrap().to_string(),
            "s3://bucket/a/b.new"
        );
        assert!(one.is_in_way_of(&one) && !one.is_in_way_of(&tree));
        assert!(
            tree.is_in_way_of(&at("s3://bucket/a/b/c")) && at("s3://bucket").is_in_way_of(&tree)
        );
        assert!(
            !tree.is_in_way_of(&at("s3://other/a/b/c"))
                && !tree.is_in_way_of(&at("s3://bucket/a/bc"))
        );
        assert_eq!(one.tree(), tree);
        let theirs = ObjectUrl::parse("s3://climate@bucket/a/x@y/").unwrap();
        assert_eq!(
            (
                theirs.profile.as_deref(),
                &theirs.bucket[..],
                &theirs.key[..]
            ),
            (Some("climate"), "bucket", "a/x@y/")
        );
        assert_eq!(
            theirs.at(b"b").unwrap().to_string(),
            "s3://climate@bucket/a/x@y/b"
        );
        for secret in [
            "s3://ID:hush@bucket/a",
            "s3://ID:hu/sh@bucket/a",
            "s3://ID:hush",
        ] {
            let why = ObjectUrl::parse(secret).unwrap_err().to_string();
            let shown = shown(Path::new(secret));
            assert!(
                !why.contains("hu") && !shown.contains("hu"),
                "{why}; {shown}"
            );
        }
        assert_eq!(shown(Path::new("s3://b/x@y")), "s3://b/x@y");
        for bad in [
            "s3://",
            "s3:///a",
            "s3://a",
            "s3://../x",
            "s3://bucket/a//b",
            "s3://bucket//",
            "s3://bucket/../x",
            "s3://bucket/./x",
            "s3://bucket/a\nb",
            "s3://buc ket/a",
            "s3://@bucket/a",
            "s3://a@b@bucket/a",
            "http://bucket/a",
        ] {
            assert!(ObjectUrl::parse(bad).is_err(), "{bad}");
        }
        assert!(ObjectUrl::parse(&format!("s3://bucket/{}", "k".repeat(1025))).is_err());
        assert!(tree.at(b"\xff").is_err() && tree.at(b"a\x01").is_err());
        assert!(is_object(Path::new("s3://b/c")) && !is_object(Path::new("/s3://b")));
    }
}
