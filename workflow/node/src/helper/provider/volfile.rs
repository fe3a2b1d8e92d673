//! The files that configure GlusterFS, which it reads once: no glusterd, nothing that changes while it runs.

use super::ProviderAddress;
use std::fmt::Write;
use std::path::Path;

/// Seconds until a brick that does not answer is given up: a program that waits for it gets an error.
const PING: u32 = 10;

/// Of a brick: a client with the password may use it, and nobody else.
///
/// There is no `write-behind` and no other cache in these files: bytes that a program has written are in the brick's folder when
/// its call returns, so nothing is lost when the client ends.
pub(super) fn brick(
    folder: &Path,
    provider_address: &ProviderAddress,
) -> Result<String, WordError> {
    let ProviderAddress {
        port,
        user,
        password,
        ..
    } = provider_address;
    let folder = word(&folder.to_string_lossy())?.to_owned();
    let mut out = String::new();
    volume(
        &mut out,
        ("posix", "storage/posix"),
        &[("directory", &folder)],
        &[],
    );
    volume(&mut out, ("locks", "features/locks"), &[], &["posix"]);
    volume(
        &mut out,
        ("brick", "performance/io-threads"),
        &[("thread-count", "16")],
        &["locks"],
    );
    volume(
        &mut out,
        ("server", "protocol/server"),
        &[
            ("transport-type", "tcp"),
            ("transport.socket.listen-port", &port.to_string()),
            ("auth.login.brick.allow", user),
            (&format!("auth.login.{user}.password"), password),
        ],
        &["brick"],
    );
    Ok(out)
}

/// Of a client: each file whole on one brick, by its name.
pub(super) fn client(provider_addresses: &[ProviderAddress]) -> Result<String, WordError> {
    let mut out = String::new();
    let names: Vec<String> = (0..provider_addresses.len())
        .map(|n| format!("node{n}"))
        .collect();
    for (name, provider_address) in names.iter().zip(provider_addresses) {
        volume(
            &mut out,
            (name, "protocol/client"),
            &[
                ("transport-type", "tcp"),
                ("remote-host", word(&provider_address.host)?),
                ("remote-port", &provider_address.port.to_string()),
                ("remote-subvolume", "brick"),
                ("username", word(&provider_address.user)?),
                ("password", word(&provider_address.password)?),
                ("ping-timeout", &PING.to_string()),
            ],
            &[],
        );
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if names.len() == 1 {
        // There is nothing to choose.
        return Ok(out);
    }
    // By the name also when the tiers are nearly full: the ledger decides what may be there, and with the default of a tenth all
    // files would go to one node.
    let always = [("min-free-disk", "0%"), ("min-free-inodes", "0%")];
    volume(&mut out, ("shared", "cluster/distribute"), &always, &names);
    Ok(out)
}

/// A value that these files cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "GlusterFS cannot be told `{}`: its files have no place for white space and quotes; name a tier whose path has none \
     (--tier NAME=PATH)",
    .0.escape_debug()
)]
pub(super) struct WordError(String);

/// A value as these files can hold it: their words end at white space, and there is no way to quote it.
fn word(value: &str) -> Result<&str, WordError> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '`' | '#' | '!');
    match value.is_empty() || value.contains(odd) {
        true => Err(WordError(value.to_owned())),
        false => Ok(value),
    }
}

fn volume(out: &mut String, (name, kind): (&str, &str), options: &[(&str, &str)], below: &[&str]) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "volume {name}\n    type {kind}");
    for (option, value) in options {
        let _ = writeln!(out, "    option {option} {value}");
    }
    if !below.is_empty() {
        let _ = writeln!(out, "    subvolumes {}", below.join(" "));
    }
    out.push_str("end-volume\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider_address(host: &str, port: u16) -> ProviderAddress {
        ProviderAddress {
            host: host.into(),
            port,
            user: "tarn".into(),
            password: format!("secret{port}"),
        }
    }

    #[test]
    fn of_a_brick() {
        let expected = "\
volume posix
    type storage/posix
    option directory /t/ws/n0/work/0.1/shared/brick
end-volume
volume locks
    type features/locks
    subvolumes posix
end-volume
volume brick
    type performance/io-threads
    option thread-count 16
    subvolumes locks
end-volume
volume server
    type protocol/server
    option transport-type tcp
    option transport.socket.listen-port 24007
    option auth.login.brick.allow tarn
    option auth.login.tarn.password secret24007
    subvolumes brick
end-volume
";
        let folder = Path::new("/t/ws/n0/work/0.1/shared/brick");
        assert_eq!(
            brick(folder, &provider_address("", 24007)).unwrap(),
            expected
        );
    }

    #[test]
    fn of_a_client() {
        let expected = "\
volume node0
    type protocol/client
    option transport-type tcp
    option remote-host a
    option remote-port 1
    option remote-subvolume brick
    option username tarn
    option password secret1
    option ping-timeout 10
end-volume
volume node1
    type protocol/client
    option transport-type tcp
    option remote-host 10.0.0.2
    option remote-port 2
    option remote-subvolume brick
    option username tarn
    option password secret2
    option ping-timeout 10
end-volume
volume shared
    type cluster/distribute
    option min-free-disk 0%
    option min-free-inodes 0%
    subvolumes node0 node1
end-volume
";
        assert_eq!(
            client(&[provider_address("a", 1), provider_address("10.0.0.2", 2)]).unwrap(),
            expected
        );
    }

    #[test]
    fn of_a_client_of_one_brick() {
        let one = client(&[provider_address("a", 1)]).unwrap();
        assert!(
            one.starts_with("volume node0\n") && !one.contains("distribute"),
            "{one}"
        );
    }

    #[test]
    fn what_would_be_read_otherwise_is_refused() {
        for odd in ["", "a b", "a\nend-volume", "a\"", "`id`"] {
            assert!(client(&[provider_address(odd, 1)]).is_err(), "{odd:?}");
            assert!(odd.is_empty() || brick(Path::new(odd), &provider_address("", 1)).is_err());
        }
    }
}
