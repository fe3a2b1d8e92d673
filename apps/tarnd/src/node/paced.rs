//! Trees of other nodes, held back to the run's rate: one for all that this node takes from others together.

use std::sync::Arc;
use tarn_data_plane::RemoteTree;
use tarn_mover::throttle::Limiter;
use tarn_ports::{MoverError, PeerStream, PeerTree, Piece, Watch};

/// Bytes that are read at once: a slow rate is kept in small steps, so that the peer sees progress.
const STEP: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Paced {
    pub(super) tree: RemoteTree,
    pub(super) limiter: Arc<Limiter>,
}

struct PacedStream<'a> {
    stream: Box<dyn PeerStream + 'a>,
    limiter: &'a Limiter,
    watch: &'a dyn Watch,
}

impl PeerTree for Paced {
    fn name(&self) -> String {
        self.tree.name()
    }

    fn open<'a>(&'a self, watch: &'a dyn Watch) -> Result<Box<dyn PeerStream + 'a>, MoverError> {
        let stream = self.tree.open(watch)?;
        let limiter = &*self.limiter;
        Ok(Box::new(PacedStream {
            stream,
            limiter,
            watch,
        }))
    }
}

impl PeerStream for PacedStream<'_> {
    fn ask(&mut self, pieces: &[Piece<'_>]) -> Result<(), MoverError> {
        self.stream.ask(pieces)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), MoverError> {
        if buffer.is_empty() {
            return self.stream.read(buffer);
        }
        for part in buffer.chunks_mut(STEP) {
            self.limiter.bytes(part.len() as u64, self.watch)?;
            self.stream.read(part)?;
        }
        Ok(())
    }
}
