//! Trees of a peer as sources of copies.

use crate::client::DataClient;
use crate::stream::Stream;
use std::sync::Arc;
use tarn_ports::{MoverError, PeerStream, PeerTree, Watch};
use tarn_proto::data::Tree;

/// A tree of a peer.
#[derive(Debug, Clone)]
pub struct RemoteTree {
    client: Arc<DataClient>,
    tree: Tree,
}

impl DataClient {
    /// A tree of the peer. No request is sent yet.
    pub fn tree(self: &Arc<Self>, tree: Tree) -> RemoteTree {
        RemoteTree {
            client: Arc::clone(self),
            tree,
        }
    }
}

impl PeerTree for RemoteTree {
    fn name(&self) -> String {
        let name = String::from_utf8_lossy(self.tree.name());
        format!("{}:{}", self.client.node, name.escape_debug())
    }

    fn open<'a>(&'a self, watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError> {
        let (wire, _) = self.client.connect(watch)?;
        Ok(Box::new(Stream::new(&self.client, &self.tree, wire, watch)))
    }
}
