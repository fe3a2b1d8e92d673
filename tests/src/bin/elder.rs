//! A tarnd of an earlier release, as far as a run sees of it: it is started and reached as every tarnd (sessions have not
//! changed since), but its messages about a run are of an older version, so it refuses all requests.

use std::net::TcpListener;
use std::sync::Arc;
use tarn_proto::node::{
    NodeReply, NodeRequest, NodeStartInput, NodeStartReport, VERSION, decode, encode,
};
use tarn_sessions::{
    NotificationSender, RunKeys, SessionHandler, SessionOpenError, SessionServer, SessionTimeouts,
    Talk,
};

/// The version of its messages.
const OLD: u32 = VERSION - 1;

struct Elder;

impl SessionHandler for Elder {
    fn opened(
        &self,
        _: &str,
        _: &str,
        _: NotificationSender,
    ) -> Result<(Vec<u8>, Box<dyn Talk>), SessionOpenError> {
        Ok((Vec::new(), Box::new(Self)))
    }
}

impl Talk for Elder {
    fn call(&self, request: Vec<u8>) -> Vec<u8> {
        let why = match decode(&request) {
            Ok(NodeRequest::Measure { version, tarn, .. }) => format!(
                "its tarnd 0.0.9 speaks version {OLD} of the messages about a run, tarn {tarn} version {version}; use the same release of tarn on all nodes"
            ),
            Ok(_) => "it was not asked for its version first".to_owned(),
            Err(e) => e.to_string(),
        };
        encode(NodeReply::Failed(why)).unwrap_or_default()
    }

    fn handle_command(&self, _: Vec<u8>) {}
}

fn main() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let start: NodeStartInput = serde_json::from_str(&line)?;
    let keys: RunKeys = serde_json::from_value(start.keys)?;
    let [control, data] = [
        TcpListener::bind("0.0.0.0:0")?,
        TcpListener::bind("0.0.0.0:0")?,
    ];
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let started = NodeStartReport {
        node: node.trim().to_owned(),
        control: control.local_addr()?.port(),
        data: data.local_addr()?.port(),
    };
    let _server =
        SessionServer::start(control, &keys, SessionTimeouts::default(), Arc::new(Elder))?;
    println!("{}", serde_json::to_string(&started)?);
    // As tarnd does, it ends with its input.
    while std::io::stdin().read_line(&mut line)? > 0 {}
    Ok(())
}
