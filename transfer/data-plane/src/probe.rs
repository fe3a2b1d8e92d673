//! How fast a peer's bytes come: the link between two nodes is measured, without a file at either end.

use crate::client::DataClient;
use crate::stream::Stream;
use crate::transport::ContentTransport;
use std::time::{Duration, Instant};
use tarn_ports::{MoverError, PeerStream, Piece, Watch};
use tarn_proto::data::Tree;

/// Bytes of one request, with twice as many requested ahead: a server that has sent one continues with the next.
const PIECE: u64 = 4 << 20;
/// Bytes that are read before the time is looked at.
const CHUNK: usize = 64 << 10;

/// How a link is measured.
#[derive(Debug, Clone, Copy)]
pub struct LinkProbe {
    /// Streams at once: as many as a copy has.
    pub streams: usize,
    /// For so long bytes are read.
    pub time: Duration,
    /// Or until there are so many.
    pub most: u64,
    /// A peer that takes longer for all of it, its handshakes included, is not measured.
    pub timeout: Duration,
}

/// The end of a probe's timeout.
struct ProbeDeadline(Instant);

impl Watch for ProbeDeadline {
    fn stopped(&self) -> bool {
        Instant::now() >= self.0
    }
}

impl DataClient {
    /// Bytes a second that come from the peer over streams at this moment.
    ///
    /// # Errors
    /// When it cannot be reached, does not know the run, or takes too long.
    pub fn rate(&self, probe: &LinkProbe) -> Result<u64, MoverError> {
        let watch = ProbeDeadline(Instant::now() + probe.timeout);
        let way = match &self.way {
            ContentTransport::Windows(_) => ContentTransport::Clear,
            way => way.clone(),
        };
        let plain = Self {
            way,
            ..self.clone()
        };
        let rate = self.rate_within(probe, &plain, &watch);
        rate.map_err(|e| match watch.stopped() {
            true => self.failed(&format!(
                "its link is not measured: it took more than {:?} ({})",
                probe.timeout, e.failure.message
            )),
            false => e,
        })
    }

    fn rate_within(
        &self,
        probe: &LinkProbe,
        plain: &Self,
        watch: &ProbeDeadline,
    ) -> Result<u64, MoverError> {
        let streams = probe.streams.max(1);
        let most = probe.most / streams as u64;
        let wires = (0..streams).map(|_| self.connect(watch));
        let wires = wires.collect::<Result<Vec<_>, _>>()?;
        let began = Instant::now();
        let rate = std::thread::scope(|scope| {
            let read = wires.into_iter().map(|(wire, _)| {
                let stream = move || Stream::new(plain, &Tree::Probe, wire, watch);
                scope.spawn(move || read(stream(), began, most, probe.time))
            });
            let read: Vec<_> = read.collect();
            let read = read.into_iter().map(std::thread::ScopedJoinHandle::join);
            let failed = |_| Err(self.failed("an error inside tarn"));
            let read = read.map(|r| r.unwrap_or_else(failed));
            read.sum::<Result<f64, _>>()
        })?;
        Ok(rate as u64)
    }
}

/// Reads until there is enough or it is late; bytes a second until then.
fn read(
    mut stream: Stream<'_>,
    began: Instant,
    most: u64,
    time: Duration,
) -> Result<f64, MoverError> {
    let piece = Piece {
        path: b"probe",
        offset: 0,
        len: PIECE,
    };
    let (mut requested, mut have) = (0, 0);
    let mut buffer = vec![0; CHUNK];
    while have < most && began.elapsed() < time {
        while requested < have + 2 * PIECE && requested < most {
            stream.ask(&[piece])?;
            requested += PIECE;
        }
        stream.read(&mut buffer)?;
        have += CHUNK as u64;
    }
    Ok(have as f64 / began.elapsed().as_secs_f64().max(1e-9))
}
