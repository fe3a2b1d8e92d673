//! The site's secrets, in the controller's state folder: `site.key`, of which the keys of users' data plane are derived, and `data.key`,
//! of which those that wrap the keys of encrypted data are. docs/internals/site.md, "Encryption between jobs".

use crate::site::Secrets;
use anyhow::{Context, bail};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use tarn_journal::lines::sync_folder;
use tarn_munge::{KEY_BYTES, SecretBytes};

const SITE: &str = "site.key";
const DATA: &str = "data.key";
/// Secrets of encrypted data, the newest and those before it.
const MAX_DATA: usize = 16;

/// Reads them; makes missing ones.
pub(super) fn read(state: &Path) -> anyhow::Result<Secrets> {
    let mut site = file(state, SITE, 1)?;
    Ok(Secrets {
        site: site.pop().context("no secret")?,
        data: file(state, DATA, MAX_DATA)?,
    })
}

/// Another secret is the newest from now on.
pub(super) fn rotate(state: &Path, secrets: &Secrets) -> anyhow::Result<Secrets> {
    if secrets.data.len() >= MAX_DATA {
        bail!(
            "there are {MAX_DATA} secrets, and no more are kept: forget the older ones first (`tarn slurm rotate-key --drop`)"
        );
    }
    let mut data = vec![SecretBytes::random()?];
    data.extend_from_slice(&secrets.data);
    keep(
        state,
        Secrets {
            data,
            ..secrets.clone()
        },
    )
}

/// Only the newest is known from now on.
pub(super) fn drop_old(state: &Path, secrets: &Secrets) -> anyhow::Result<Secrets> {
    let data = secrets.data.iter().take(1).cloned().collect();
    keep(
        state,
        Secrets {
            data,
            ..secrets.clone()
        },
    )
}

fn keep(state: &Path, secrets: Secrets) -> anyhow::Result<Secrets> {
    write(state, DATA, &secrets.data)?;
    Ok(secrets)
}

fn file(state: &Path, name: &str, most: usize) -> anyhow::Result<Vec<SecretBytes>> {
    let path = state.join(name);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let fresh = vec![SecretBytes::random()?];
            write(state, name, &fresh)?;
            return Ok(fresh);
        }
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    if std::fs::metadata(&path)?.mode() & 0o077 != 0 {
        bail!(
            "{} can be read by others: chmod 600 it, and have another made, for this one may be known (remove site.key and start the controller, or `tarn slurm rotate-key --drop`)",
            path.display()
        );
    }
    let (secrets, rest) = bytes.as_chunks::<KEY_BYTES>();
    if secrets.is_empty() || !rest.is_empty() || secrets.len() > most {
        bail!(
            "{} does not hold secrets of {KEY_BYTES} bytes, at most {most}",
            path.display()
        );
    }
    Ok(secrets
        .iter()
        .map(|bytes| SecretBytes::new(*bytes))
        .collect())
}

/// The older file is overwritten when the new one has its name.
fn write(state: &Path, name: &str, secrets: &[SecretBytes]) -> anyhow::Result<()> {
    let (path, fresh) = (state.join(name), state.join(format!("{name}.new")));
    let about = || path.display().to_string();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&fresh).with_context(about)?;
    for secret in secrets {
        file.write_all(secret.bytes()).with_context(about)?;
    }
    file.sync_all().with_context(about)?;
    let old = OpenOptions::new().write(true).open(&path).ok();
    std::fs::rename(&fresh, &path).with_context(about)?;
    sync_folder(state).with_context(about)?;
    if let Some(mut old) = old {
        let length = old.metadata().map_or(0, |about| about.len());
        let zeros = vec![0; usize::try_from(length).unwrap_or(0)];
        let _ = old.write_all(&zeros).and_then(|()| old.sync_all());
    }
    Ok(())
}
