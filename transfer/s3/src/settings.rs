//! The store and the keys: from variables and files of the user, as for the field's tools.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Files of certificates, as systems have them.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The region if no setting names one.
const REGION: &str = "us-east-1";
/// Bytes of a file of settings or certificates.
const MAX_FILE: u64 = 16 << 20;

/// The reason why the store or its keys are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("there are no keys for the object store: {0}")]
    NoKeys(String),
    #[error("this system has no file of certificates; name one in `AWS_CA_BUNDLE`")]
    NoCertificates,
    #[error("there is no {}", .0.display())]
    Missing(PathBuf),
    #[error("{} has no certificate", .0.display())]
    Empty(PathBuf),
    #[error("cannot read {}: {error}", .file.display())]
    Unreadable { file: PathBuf, error: io::Error },
}

/// The keys that requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SigningKeys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKeys")
    }
}

/// The store, and the keys for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The store's address; `None` for Amazon's.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    /// `None`: requests are not signed.
    pub(crate) keys: Option<SigningKeys>,
    /// The origin of the keys, for messages.
    from: String,
    certificates: Option<PathBuf>,
}

/// A variable.
type VariableLookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;
/// The text of a variable that is not empty.
type TextLookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

fn endpoint(text: &TextLookup<'_>) -> Option<String> {
    text("AWS_ENDPOINT_URL_S3").or_else(|| text("AWS_ENDPOINT_URL"))
}

fn region(text: &TextLookup<'_>) -> Option<String> {
    text("AWS_REGION").or_else(|| text("AWS_DEFAULT_REGION"))
}

impl Settings {
    /// The settings of the variables, and then those of the files that they or the home folder name; with a named profile,
    /// its own settings first.
    ///
    /// # Errors
    /// The setting that is missing, or the file that cannot be read.
    pub(crate) fn find(
        var: &VariableLookup<'_>,
        profile: Option<&str>,
    ) -> Result<Self, SettingsError> {
        let text = |name: &str| {
            let value = var(name)?.into_string().ok()?;
            Some(value.trim().to_owned()).filter(|v| !v.is_empty())
        };
        let files = Files::read(var)?;
        if let Some(profile) = profile {
            return Self::of_profile(&files, profile, &text);
        }
        let given = text("AWS_PROFILE").or_else(|| text("AWS_DEFAULT_PROFILE"));
        let profile = given.unwrap_or_else(|| "default".into());
        let of = |name: &str| files.value(&profile, name);
        let in_variables = text("AWS_ACCESS_KEY_ID").zip(text("AWS_SECRET_ACCESS_KEY"));
        let anonymous = text("AWS_NO_SIGN_REQUEST")
            .is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "no" | "false"));
        let (keys, from) = match (anonymous, in_variables) {
            (true, _) => (None, "nobody (`AWS_NO_SIGN_REQUEST` is set)".to_owned()),
            (false, Some((id, secret))) => {
                let token = text("AWS_SESSION_TOKEN");
                let keys = SigningKeys { id, secret, token };
                (Some(keys), "the keys in `AWS_ACCESS_KEY_ID`".into())
            }
            (false, None) => {
                let missing = || {
                    format!(
                        "neither in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, nor {}; a public bucket is read with \
                         `AWS_NO_SIGN_REQUEST=1`",
                        files.looked(&profile)
                    )
                };
                let keys = files.keys(&profile);
                let keys = keys.ok_or_else(|| SettingsError::NoKeys(missing()))?;
                (Some(keys), format!("the keys of the profile `{profile}`"))
            }
        };
        Ok(Self {
            endpoint: endpoint(&text).or_else(|| of("endpoint_url")),
            region: region(&text)
                .or_else(|| of("region"))
                .unwrap_or_else(|| REGION.into()),
            keys,
            from,
            certificates: text("AWS_CA_BUNDLE")
                .or_else(|| of("ca_bundle"))
                .or_else(|| text("SSL_CERT_FILE"))
                .map(PathBuf::from),
        })
    }

    /// The settings of a profile that a URL names. Keys are its own, never those of variables.
    fn of_profile(
        files: &Files,
        profile: &str,
        text: &TextLookup<'_>,
    ) -> Result<Self, SettingsError> {
        let of = |name: &str| files.value(profile, name);
        let missing = || SettingsError::NoKeys(format!("none {}", files.looked(profile)));
        let keys = files.keys(profile).ok_or_else(missing)?;
        Ok(Self {
            endpoint: of("endpoint_url").or_else(|| endpoint(text)),
            region: of("region")
                .or_else(|| region(text))
                .unwrap_or_else(|| REGION.into()),
            keys: Some(keys),
            from: format!("the keys of the profile `{profile}`"),
            certificates: of("ca_bundle")
                .or_else(|| text("AWS_CA_BUNDLE"))
                .or_else(|| text("SSL_CERT_FILE"))
                .map(PathBuf::from),
        })
    }

    /// The same, with the store at this endpoint where nothing else has named one.
    pub(crate) fn or_endpoint(mut self, endpoint: Option<&str>) -> Self {
        self.endpoint = self.endpoint.or_else(|| endpoint.map(str::to_owned));
        self
    }

    /// The store's URL.
    pub(crate) fn endpoint_url(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://s3.{}.amazonaws.com", self.region),
        }
    }

    /// The origin of the keys, for messages: never a key.
    pub(crate) fn who(&self) -> &str {
        &self.from
    }

    /// The file of the certificates that are trusted, and its content.
    pub(crate) fn certificates(&self) -> Result<(PathBuf, Vec<u8>), SettingsError> {
        let known = || BUNDLES.iter().map(PathBuf::from).find(|f| f.exists());
        let file = self.certificates.clone().or_else(known);
        let file = file.ok_or(SettingsError::NoCertificates)?;
        match read(&file)? {
            Some(bytes) => Ok((file, bytes)),
            None => Err(SettingsError::Missing(file)),
        }
    }
}

/// The sections of the two files: of the second one without the word `profile`.
struct Files {
    credentials: Sections,
    config: Sections,
    looked: Vec<PathBuf>,
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

impl Files {
    fn read(var: &VariableLookup<'_>) -> Result<Self, SettingsError> {
        let home = var("HOME").map(PathBuf::from);
        let place = |name: &str, last: &str| {
            let named = var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
            named.or_else(|| Some(home.as_ref()?.join(".aws").join(last)))
        };
        let mut looked = Vec::new();
        let mut sections = |file: Option<PathBuf>| -> Result<Sections, SettingsError> {
            let Some(file) = file else {
                return Ok(Sections::new());
            };
            let bytes = read(&file)?.unwrap_or_default();
            looked.push(file);
            Ok(sections_of(&String::from_utf8_lossy(&bytes)))
        };
        let credentials = sections(place("AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
        let config = sections(place("AWS_CONFIG_FILE", "config"))?;
        Ok(Self {
            credentials,
            config,
            looked,
        })
    }

    fn value(&self, profile: &str, name: &str) -> Option<String> {
        let of = |sections: &Sections| sections.get(profile)?.get(name).cloned();
        of(&self.credentials).or_else(|| of(&self.config))
    }

    fn keys(&self, profile: &str) -> Option<SigningKeys> {
        Some(SigningKeys {
            id: self.value(profile, "aws_access_key_id")?,
            secret: self.value(profile, "aws_secret_access_key")?,
            token: self.value(profile, "aws_session_token"),
        })
    }

    /// The files in which a profile was looked for.
    fn looked(&self, profile: &str) -> String {
        let files = self.looked.iter();
        let files: Vec<_> = files.map(|f| f.display().to_string()).collect();
        format!("for the profile `{profile}` in {}", files.join(" or "))
    }
}

/// A file's bytes; `None` when there is none.
fn read(file: &Path) -> Result<Option<Vec<u8>>, SettingsError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file);
    match opened.and_then(|f| f.take(MAX_FILE).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SettingsError::Unreadable {
            file: file.to_owned(),
            error,
        }),
    }
}

/// `[name]`, then `key = value`; indented lines belong to a key of another kind and are left out.
fn sections_of(text: &str) -> Sections {
    let mut all = Sections::new();
    let mut section = None;
    for line in text.lines() {
        let words = line.trim();
        if words.starts_with(['#', ';']) || words.is_empty() {
            continue;
        }
        if let Some(name) = words.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            let name = name.trim();
            let profile = name.strip_prefix("profile ").map_or(name, str::trim);
            section = Some(profile.trim_matches('"').to_owned());
        } else if let (Some(section), false, Some((key, value))) = (
            &section,
            line.starts_with([' ', '\t']),
            words.split_once('='),
        ) {
            let (key, value) = (key.trim().to_lowercase(), value.trim().to_owned());
            all.entry(section.clone()).or_default().insert(key, value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(vars: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let vars: BTreeMap<&str, &str> = vars.iter().copied().collect();
        Settings::find(&|name| vars.get(name).map(OsString::from), None)
    }

    #[test]
    fn variables_come_before_files_and_secrets_are_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().to_str().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(home.path().join(".aws").join(name), text).unwrap()
        };
        put(
            "credentials",
            "# mine\n[default]\naws_access_key_id = D\naws_secret_access_key=hush-d\n[site]\naws_access_key_id=S\n\
             aws_secret_access_key = hush=s\naws_session_token = hush-t\n",
        );
        put(
            "config",
            "[default]\nregion = eu-1\n[profile site]\nregion = eu-2\nendpoint_url = https://store:9000\ns3 =\n  region = no\n",
        );
        let plain = find(&[("HOME", at)]).unwrap();
        assert_eq!(
            (plain.region.as_str(), plain.endpoint.as_deref()),
            ("eu-1", None)
        );
        assert_eq!(plain.endpoint_url(), "https://s3.eu-1.amazonaws.com");
        let site = find(&[("HOME", at), ("AWS_PROFILE", "site")]).unwrap();
        let keys = site.keys.clone().unwrap();
        assert!(!format!("{site:?}").contains("hush"), "{site:?}");
        assert_eq!(
            (
                keys.id.as_str(),
                keys.secret.as_str(),
                keys.token.as_deref()
            ),
            ("S", "hush=s", Some("hush-t"))
        );
        assert_eq!(
            (site.region.as_str(), site.endpoint_url().as_str()),
            ("eu-2", "https://store:9000")
        );
        let given = [
            ("HOME", at),
            ("AWS_PROFILE", "site"),
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "hush-v"),
            ("AWS_REGION", "eu-3"),
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_ENDPOINT_URL_S3", "http://b"),
        ];
        let given = find(&given).unwrap();
        let keys = given.keys.clone().unwrap();
        assert_eq!((keys.id.as_str(), keys.token.as_deref()), ("V", None));
        assert_eq!(
            (given.region.as_str(), given.endpoint_url().as_str()),
            ("eu-3", "http://b")
        );
        // A profile that a URL names comes before variables.
        let vars: BTreeMap<&str, &str> = [
            ("HOME", at),
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "hush-v"),
            ("AWS_ENDPOINT_URL", "http://a"),
            ("AWS_NO_SIGN_REQUEST", "1"),
        ]
        .into();
        let var = |name: &str| vars.get(name).map(OsString::from);
        let named = |profile| Settings::find(&var, Some(profile));
        let (own, other) = (named("site").unwrap(), named("default").unwrap());
        let id = |settings: &Settings| settings.keys.clone().unwrap().id;
        assert_eq!(
            (id(&own), own.endpoint_url()),
            ("S".into(), "https://store:9000".into())
        );
        assert_eq!(
            (id(&other), other.endpoint_url()),
            ("D".into(), "http://a".into())
        );
        let none = named("another").unwrap_err().to_string();
        assert!(none.contains("none for the profile `another`"), "{none}");
        // The site's settings come last.
        let site = |settings: Settings| settings.or_endpoint(Some("http://c")).endpoint_url();
        assert_eq!(site(own.clone()), "https://store:9000");
        assert_eq!(site(plain.clone()), "http://c");
        for settings in [plain, own, given] {
            assert!(!format!("{settings:?}").contains("hush"), "{settings:?}");
        }
        let none = find(&[("HOME", at), ("AWS_PROFILE", "other")]);
        let none = none.unwrap_err().to_string();
        assert!(
            none.contains("`other`") && none.contains(".aws/credentials"),
            "{none}"
        );
        assert!(
            find(&[("AWS_NO_SIGN_REQUEST", "1")])
                .unwrap()
                .keys
                .is_none()
        );
        assert!(find(&[("AWS_NO_SIGN_REQUEST", "false")]).is_err());
    }
}
