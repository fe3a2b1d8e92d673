//! Other nodes' tarnds: their addresses (the file of `--peers`), and requests to them. This node's replies to them are in
//! `peer_host`.

mod handed;

pub(crate) use handed::handed;

use crate::mover_error::request_error_of;
use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tarn_data_plane::{
    CallStream, ContentTransport, DataClient, DataClientTimeouts, DataServer, Key, Limits,
    MAX_ADDRESSES, Registry, RemoteTree, RunId, Transport, Tree,
};
use tarn_mover::throttle::Limiter;
use tarn_ports::{Control, Watch};
use tarn_proto::local::{
    Code, PathBytes, PeerTarndReply, PeerTarndRequest, RemotePartition, RequestError, WindowUse,
    pack, unpack,
};
use tarn_types::manifest::Manifest;
use tarn_types::units::parse_rate;

/// Bytes of the file of peers.
const MAX_FILE: u64 = 4 << 20;
/// Nodes in it.
const MAX_PEERS: usize = 16_384;
/// Digits of a key, two for a byte.
const DIGITS: usize = 64;
/// Nodes up to which a stream is kept to each one whose tasks are followed: half of those that a node serves.
const KEPT_LINES: usize = 32;
/// Tasks at a time over a link, by default.
const SLOTS: u32 = 4;

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersFile {
    key: String,
    nodes: BTreeMap<String, WrittenNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    address: String,
    rate: Option<String>,
    slots: Option<u32>,
}

/// Another node.
#[derive(Debug, Clone)]
struct PeerNode {
    /// Host name or address, and port.
    address: String,
    slots: u32,
    /// Limits the rate of the link to it: of all that is taken from there together.
    link: Option<Arc<Limiter>>,
    calls: Arc<Mutex<Calls>>,
}

/// A stream for requests to another node, while this node follows tasks there.
#[derive(Debug, Default)]
struct Calls {
    followed: usize,
    line: Option<(Arc<DataClient>, CallStream)>,
}

/// A task of another node's is followed.
#[derive(Debug)]
pub(crate) struct Following(Option<Arc<Mutex<Calls>>>);

impl Drop for Following {
    fn drop(&mut self) {
        let Some(calls) = &self.0 else { return };
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            calls.followed > 0,
            "a task of a node was followed to its end twice"
        );
        calls.followed -= 1;
        if calls.followed == 0 {
            calls.line = None;
        }
    }
}

/// This node among others.
#[derive(Debug, Clone)]
pub(crate) struct PeerTable {
    /// This node's name.
    pub(crate) own: String,
    port: u16,
    pub(crate) run: RunId,
    pub(crate) key: Key,
    others: BTreeMap<String, PeerNode>,
    /// libfabric, if it is used.
    way: ContentTransport,
}

fn key_of(digits: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    let digits = digits.as_bytes();
    if digits.len() != DIGITS || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

impl PeerTable {
    /// Reads the file of peers; `own` is this node's name in it.
    pub(crate) fn read(path: &Path, own: &str) -> anyhow::Result<Self> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
        let about = file
            .metadata()
            .with_context(|| format!("cannot examine {shown}"))?;
        ensure!(
            about.mode() & 0o077 == 0 && about.uid() == rustix::process::geteuid().as_raw(),
            "{shown} holds the key of this user's tarnds, and others may read or write it (mode {:o}, user {}); make it your own, and `chmod 600` it",
            about.mode() & 0o7777,
            about.uid()
        );
        ensure!(
            about.len() <= MAX_FILE,
            "{shown} has {} bytes, more than {MAX_FILE}",
            about.len()
        );
        let mut text = String::new();
        file.take(MAX_FILE)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text, own).with_context(|| format!("{shown} cannot be used"))
    }

    pub(crate) fn parse(text: &str, own: &str) -> anyhow::Result<Self> {
        // An error of toml quotes the line, which may be the key's.
        let written: PeersFile = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |s| 1 + text[..s.start].matches('\n').count());
            anyhow::anyhow!("line {line}: {}; it needs `key` and a table `[nodes.NAME]` with `address` for each node", e.message())
        })?;
        let Some(secret) = key_of(&written.key) else {
            bail!("`key` must be {DIGITS} hexadecimal digits: `openssl rand -hex 32` makes them");
        };
        ensure!(
            written.nodes.len() <= MAX_PEERS,
            "{} nodes, more than {MAX_PEERS}",
            written.nodes.len()
        );
        let run = Key::derive(&secret, b"tarn tasks run")?;
        let mut peers = Self {
            own: own.into(),
            port: 0,
            run: *run.0.first_chunk().context("a key is too short")?,
            key: Key::derive(&secret, b"tarn tasks data")?,
            others: BTreeMap::new(),
            way: ContentTransport::Clear,
        };
        for (name, node) in written.nodes {
            tarn_tasks::check_name("node", &name).map_err(|why| anyhow::anyhow!(why.text))?;
            let port = node.address.rsplit_once(':').map(|(_, port)| port.parse());
            let Some(Ok(port)) = port else {
                bail!(
                    "node {name}: `address` must be HOST:PORT, and is `{}`",
                    node.address.escape_debug()
                );
            };
            let slots = node.slots.unwrap_or(SLOTS);
            ensure!(
                (1..=64).contains(&slots),
                "node {name}: `slots` must be 1 to 64"
            );
            let rate = match node.rate.as_deref().map(parse_rate) {
                None => None,
                Some(Ok(rate)) if rate > 0 => Some(rate),
                Some(_) => bail!("node {name}: `rate` must be such as \"200 MB/s\""),
            };
            if name == own {
                peers.port = port;
                continue;
            }
            let peer = PeerNode {
                address: node.address,
                slots,
                link: rate.map(|rate| Limiter::new(rate, 0)),
                calls: Arc::default(),
            };
            peers.others.insert(name, peer);
        }
        ensure!(
            peers.port > 0,
            "there is no node `{own}`, which is this one's name (`--node-name` gives it another)"
        );
        Ok(peers)
    }

    /// From now on content travels so.
    pub(crate) fn travel(&mut self, transport: &Transport) -> anyhow::Result<()> {
        self.way = transport.way().map_err(anyhow::Error::msg)?;
        Ok(())
    }

    /// The nodes that can be reached, and how many tasks at a time over the link to each.
    pub(crate) fn slots(&self) -> BTreeMap<String, u32> {
        let slots = self.others.iter().map(|(name, p)| (name.clone(), p.slots));
        slots.collect()
    }

    /// The limiter of the link to a node.
    pub(crate) fn link(&self, node: &str) -> Option<Arc<Limiter>> {
        self.others.get(node)?.link.clone()
    }

    /// Answers other nodes, on all addresses: a node without the key gets no answer.
    pub(crate) fn serve(&self, registry: Arc<dyn Registry>) -> std::io::Result<DataServer> {
        let limits = Limits::default();
        // Both kinds of addresses where the kernel has both.
        let same = Arc::clone(&registry);
        match DataServer::start(("::", self.port), same, limits, self.way.clone()) {
            Err(e) if e.kind() != std::io::ErrorKind::AddrInUse => {
                DataServer::start(("0.0.0.0", self.port), registry, limits, self.way.clone())
            }
            served => served,
        }
    }

    fn client(&self, node: &str) -> Result<Arc<DataClient>, RequestError> {
        let unknown = || {
            let text = format!("node `{node}` is not one that this tarnd knows");
            RequestError::new(Code::Unsupported, text)
        };
        let peer = self.others.get(node).ok_or_else(unknown)?;
        let address = &peer.address;
        let io = |why: String| {
            let text = format!("node {node} cannot be reached at {address}: {why}");
            RequestError::new(Code::Io, text)
        };
        let found = address.to_socket_addrs().map_err(|e| io(e.to_string()));
        let mut found = found?;
        let first = found.next().ok_or_else(|| io("no such host".into()))?;
        Ok(Arc::new(DataClient {
            node: node.to_owned(),
            address: first,
            others: found.take(MAX_ADDRESSES).collect(),
            run: self.run,
            key: self.key.clone(),
            timeout: DataClientTimeouts::default(),
            way: match &self.way {
                // Only partitions are read by windows.
                ContentTransport::Windows(_) => ContentTransport::Clear,
                way => way.clone(),
            },
        }))
    }

    /// Asks a node.
    pub(crate) fn ask(
        &self,
        node: &str,
        ask: &PeerTarndRequest,
        watch: &dyn Watch,
    ) -> Result<PeerTarndReply, RequestError> {
        let body = pack(ask).map_err(|e| RequestError::new(Code::Internal, e.to_string()))?;
        decode_reply(node, &self.call(node, &body, watch)?)
    }

    /// Has a node open a partition: its reply, and the stream that it has given over to that.
    pub(crate) fn open_partition(
        &self,
        node: &str,
        ask: &PeerTarndRequest,
    ) -> Result<(RemotePartition, OwnedFd), RequestError> {
        open_partition_at(&*self.client(node)?, &self.way, ask, &Control::default())
    }

    /// A task there is followed from now on: calls share one stream meanwhile. With many nodes none is kept, as each node
    /// serves [`Limits::streams`].
    pub(crate) fn follow(&self, node: &str) -> Following {
        let few = self.others.len() <= KEPT_LINES;
        let calls = self.others.get(node).filter(|_| few).map(|p| &p.calls);
        if let Some(calls) = calls {
            calls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .followed += 1;
        }
        Following(calls.cloned())
    }

    fn call(&self, node: &str, body: &[u8], watch: &dyn Watch) -> Result<Vec<u8>, RequestError> {
        let calls = self.others.get(node).map(|peer| &peer.calls);
        // While another call is under way on it, this one has a stream of its own.
        if let Some(Ok(mut calls)) = calls.map(|c| c.try_lock())
            && calls.followed > 0
        {
            let kept = calls.line.take().filter(|(_, line)| line.is_open());
            let (client, mut line) = match kept {
                Some(kept) => kept,
                None => {
                    let client = self.client(node)?;
                    let line = client.line(watch).map_err(|e| request_error_of(&e))?;
                    (client, line)
                }
            };
            let reply = client.call_on(&mut line, body, watch);
            let reply = reply.map_err(|e| request_error_of(&e))?;
            calls.line = Some((client, line));
            return Ok(reply);
        }
        let reply = self.client(node)?.call(body, watch);
        reply.map_err(|e| request_error_of(&e))
    }

    /// Lists a place of another node.
    pub(crate) fn list(
        &self,
        (node, space, path): (&str, &str, &[u8]),
        hashes: bool,
        control: &Control,
    ) -> Result<PeerEndpoint, RequestError> {
        let ask = PeerTarndRequest::List {
            space: space.to_owned(),
            path: path.into(),
            hashes,
        };
        let PeerTarndReply::Listed {
            single,
            manifest,
            print,
        } = self.ask(node, &ask, control)?
        else {
            return Err(unexpected(node));
        };
        let list = Manifest::decode(&manifest)
            .map_err(|e| RequestError::new(Code::Io, format!("node {node} sent no list: {e}")))?;
        if single && list.entries.len() != 1 {
            return Err(unexpected(node));
        }
        let folder = match (single, path.iter().rposition(|b| *b == b'/')) {
            (true, Some(at)) => &path[..at],
            (true, None) => b"",
            (false, _) => path,
        };
        let name = match folder {
            b"" => space.as_bytes().to_vec(),
            folder => [space.as_bytes(), b"/", folder].concat(),
        };
        let tree = self.client(node)?.tree(Tree::Space(name.into()));
        Ok(PeerEndpoint {
            single,
            list,
            print,
            tree,
        })
    }

    /// Removes a moved source from a node, unless it has changed.
    pub(crate) fn release(
        &self,
        (node, space, path): (&str, &str, &[u8]),
        task: u64,
        print: u128,
    ) -> Result<(), RequestError> {
        let ask = PeerTarndRequest::Release {
            space: space.to_owned(),
            path: PathBytes::from(path),
            node: self.own.clone(),
            task,
            print,
        };
        match self.ask(node, &ask, &Control::default())? {
            PeerTarndReply::Freed(_) => Ok(()),
            _ => Err(unexpected(node)),
        }
    }
}

/// Has a node open a partition: its reply, how it is used, and the stream that it has given over to that.
pub(crate) fn open_partition_at(
    client: &DataClient,
    way: &ContentTransport,
    ask: &PeerTarndRequest,
    watch: &dyn Watch,
) -> Result<(RemotePartition, OwnedFd), RequestError> {
    let internal = |why: String| RequestError::new(Code::Internal, why);
    let body = pack(ask).map_err(|e| internal(e.to_string()))?;
    let mut line = client.line(watch).map_err(|e| request_error_of(&e))?;
    let reply = client.call_on(&mut line, &body, watch);
    match decode_reply(&client.node, &reply.map_err(|e| request_error_of(&e))?)? {
        PeerTarndReply::Exported(mut far) => {
            far.windows = way.rma().map(|rma| WindowUse {
                provider: rma.provider().to_owned(),
                library: rma.library().as_os_str().as_bytes().into(),
            });
            let stream = line.into_stream();
            let (stream, seal) = stream.map_err(|e| internal(e.to_string()))?;
            far.seal = seal;
            Ok((far, stream.into()))
        }
        _ => Err(unexpected(&client.node)),
    }
}

/// A place of another node.
#[derive(Debug)]
pub(crate) struct PeerEndpoint {
    /// Whether it is a single file or link, whose name is in the list.
    pub(crate) single: bool,
    pub(crate) list: Manifest,
    /// Its fingerprint, for its removal.
    pub(crate) print: u128,
    pub(crate) tree: RemoteTree,
}

/// Decodes a node's reply.
fn decode_reply(node: &str, reply: &[u8]) -> Result<PeerTarndReply, RequestError> {
    let decoded = unpack(reply)
        .map_err(|why| RequestError::new(Code::Version, format!("node {node}: {why}")));
    match decoded? {
        PeerTarndReply::Refused(why) => Err(RequestError::new(
            why.code,
            format!("node {node}: {}", why.text),
        )),
        decoded => Ok(decoded),
    }
}

pub(crate) fn unexpected(node: &str) -> RequestError {
    let text = format!("node {node} gave an answer that does not belong to the question");
    RequestError::new(Code::Internal, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    #[test]
    fn the_file_of_peers_is_read_strictly() {
        let good = format!(
            "key = \"{KEY}\"\n[nodes.a]\naddress = \"a:7000\"\n[nodes.b]\naddress = \"b:7000\"\nrate = \"10 MB/s\"\nslots = 2\n"
        );
        let peers = PeerTable::parse(&good, "a").unwrap();
        assert_eq!(
            (peers.port, peers.slots()),
            (7000, [("b".into(), 2)].into())
        );
        assert!(peers.link("b").is_some() && peers.link("a").is_none());
        assert_eq!(
            PeerTable::parse(&good, "b").unwrap().slots(),
            [("a".into(), SLOTS)].into()
        );
        let bad = |text: &str, own: &str| format!("{:#}", PeerTable::parse(text, own).unwrap_err());
        assert!(bad(&good, "c").contains("no node `c`"));
        for (from, to, why) in [
            (KEY, "0011", "64 hexadecimal"),
            (KEY, &KEY.replace('0', "g"), "64 hexadecimal"),
            ("10 MB/s", "0 MB/s", "`rate`"),
            ("slots = 2", "slots = 0", "`slots`"),
            ("a:7000", "a", "HOST:PORT"),
            ("a:7000", "a:70000", "HOST:PORT"),
            ("[nodes.b]", "[nodes.\"b/c\"]", "no name of a node"),
            ("rate", "raet", "unknown field"),
        ] {
            let text = bad(&good.replace(from, to), "a");
            assert!(text.contains(why), "{text}");
            assert!(!text.contains(KEY), "{text}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.toml");
        std::fs::write(
            &path,
            format!("key = \"{KEY}\"\n[nodes.a]\naddress = \"a:7000\"\n"),
        )
        .unwrap();
        for (mode, good) in [(0o644, false), (0o660, false), (0o600, true), (0o400, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(PeerTable::read(&path, "a").is_ok(), good, "{mode:o}");
        }
    }
}
