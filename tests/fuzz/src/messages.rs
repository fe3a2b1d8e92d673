//! Messages: between hosts, between programs of one host.

use crate::owned;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tarn_proto::{data, local, node, site, storage};
use tarn_stream::hello;

/// A message is written so that it is read as the same one.
fn site_message<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(message) = site::decode::<T>(bytes) else {
        return;
    };
    let Ok(frame) = site::encode(&message) else {
        return;
    };
    let again = site::decode::<T>(&frame[4..]);
    let again = again.unwrap_or_else(|why| panic!("{why}"));
    let as_json = |message: &T| serde_json::to_string(message).ok();
    assert_eq!(as_json(&again), as_json(&message));
}

/// Between the controller, its nodes, and its callers.
pub(crate) fn site(bytes: &[u8]) {
    site_message::<site::ControllerRequest>(bytes);
    site_message::<site::ControllerReply>(bytes);
    site_message::<site::Greeting>(bytes);
    site_message::<site::NodeWelcome>(bytes);
    site_message::<site::NumberedOrder>(bytes);
    site_message::<site::Report>(bytes);
}

/// Between a node's tarnd and its workers, which are users'.
pub(crate) fn worker(bytes: &[u8]) {
    site_message::<site::Work>(bytes);
    site_message::<site::WorkResult>(bytes);
    site_message::<site::Holding>(bytes);
}

pub(crate) fn site_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "\"Nodes\"",
        "{\"Job\":17}",
        "\"Plan\"",
        "{\"PlanStatus\":{\"mode\":\"observe\",\"policy\":\"data\",\"made\":1,\"age\":1,\"took\":1,\"waiting\":1,\"begun\":1,\"on_planned_nodes\":1,\"median_error\":1}}",
        "{\"End\":{\"user\":1000,\"workflow\":\"foam\"}}",
        "{\"Stage\":{\"job\":17,\"stage\":{\"PreRun\":[\"n1\",\"n2\"]}}}",
        "{\"number\":1,\"order\":{\"Dismiss\":17}}",
        "{\"Stage\":{\"job\":17,\"stage\":\"PutBack\"}}",
        "{\"number\":2,\"order\":{\"Do\":{\"user\":1000,\"group\":100,\"work\":{\"Checkpoints\":{\"folder\":{\"workflow\":\"foam\",\"step\":\"solve\"},\"store\":\"\"}}}}}",
        "{\"number\":3,\"order\":{\"Do\":{\"user\":1000,\"group\":100,\"work\":{\"Slice\":{\"job\":17,\"dataset\":\"x\",\"parts\":[],\"slice\":{\"rule\":\"p{rank}\",\"first\":0,\"end\":2,\"rest\":true},\"written\":false,\"store\":\"\"}}}}}",
    ])
}

/// Between a run and its allocation's nodes.
pub(crate) fn node(bytes: &[u8]) {
    let _ = node::decode::<node::NodeCommand>(bytes);
    let _ = node::decode::<node::NodeNotification>(bytes);
    let _ = node::decode::<node::NodeRequest>(bytes);
    let _ = node::decode::<node::NodeReply>(bytes);
}

/// Between tarnd and the programs of its node.
pub(crate) fn local(bytes: &[u8]) {
    let _ = local::decode::<local::LocalRequest>(bytes);
    let _ = local::decode::<local::Reply>(bytes);
}

pub(crate) fn local_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new()];
    let hello = local::LocalRequest::Hello {
        oldest: local::OLDEST,
        newest: local::VERSION,
        job: None,
    };
    let mut packet = Vec::new();
    if local::encode(local::VERSION, 1, &hello, &mut packet).is_ok() {
        seeds.push(packet);
    }
    seeds
}

/// Between tarnds.
pub(crate) fn peer(bytes: &[u8]) {
    let _ = local::unpack::<local::PeerTarndRequest>(bytes);
    let _ = local::unpack::<local::PeerTarndReply>(bytes);
}

pub(crate) fn peer_seeds() -> Vec<Vec<u8>> {
    vec![vec![1, 0, 0], vec![2, 0, 1, 1, 1]]
}

/// The messages that move parts between nodes.
pub(crate) fn data(bytes: &[u8]) {
    let _ = bytes.first_chunk().map(hello::Hello::decode);
    let _ = bytes.first_chunk().map(hello::Welcome::decode);
    let _ = bytes
        .first_chunk()
        .map(|byte| hello::Verdict::decode(*byte));
    let _ = bytes.first_chunk().map(data::ReadReplyHeader::decode);
    let _ = bytes.first_chunk().map(data::Window::decode_head);
    let _ = data::DataRequest::decode(bytes);
    let _ = data::DataCall::decode(bytes);
}

/// The requests for bytes of other nodes' partitions, and the replies.
pub(crate) fn storage(bytes: &[u8]) {
    let _ = bytes.first_chunk().map(storage::StorageRequest::decode);
    let _ = bytes
        .first_chunk()
        .map(|bytes| storage::StorageReply::decode(*bytes));
    let _ = storage::Offer::decode(bytes);
}
