//! Connections of those who have not proven who they are: as many as there are places, and when these are taken, the oldest of the
//! address that has most of them goes. So a host that opens many crowds out its own.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tarn_types::account;
use tarn_types::strangers::sent_away;

/// All of them.
#[derive(Debug, Clone)]
pub struct PendingConnections(Arc<Mutex<All>>);

#[derive(Debug)]
struct All {
    /// Those at a time, of all addresses and of one.
    most: usize,
    most_of_one: usize,
    next: u64,
    /// Those that were sent away and whose threads have not ended count as well.
    living: usize,
    open: BTreeMap<u64, (IpAddr, TcpStream)>,
}

/// A connection's place, given back at the end, or when it has proven its identity.
#[derive(Debug)]
pub struct PendingConnection(PendingConnections, u64);

/// The host that an address stands for: of IPv6 a host may have a whole network, and of IPv4 each has one, however it is written.
fn whose(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(ip) => {
            let network = u128::from(ip) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        ip => ip,
    }
}

impl PendingConnections {
    /// None yet, and at most so many at a time, of all addresses and of one.
    pub fn new(most: usize, most_of_one: usize) -> Self {
        Self(Arc::new(Mutex::new(All {
            most,
            most_of_one,
            next: 0,
            living: 0,
            open: BTreeMap::new(),
        })))
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection. Returns the address that lost its place for it, if any.
    ///
    /// # Errors
    /// When there is no descriptor for it, or as many as have a place were sent away and have not ended yet.
    pub fn admit(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
    ) -> std::io::Result<(PendingConnection, Option<IpAddr>)> {
        let (closer, from) = (stream.try_clone()?, whose(from));
        let mut all = self.all();
        if all.living >= all.most.saturating_mul(2) {
            let text = "too many connections that have not proven who they are still end";
            return Err(std::io::Error::other(text));
        }
        let own = all.open.iter().filter(|(_, (ip, _))| *ip == from);
        let (count, oldest) = (own.clone().count(), own.map(|(n, _)| *n).next());
        let goes = match () {
            () if count >= all.most_of_one => oldest,
            () if all.open.len() >= all.most => {
                sent_away(all.open.iter().map(|(n, (ip, _))| (*n, *ip)))
            }
            () => None,
        };
        let gone = goes.and_then(|number| all.open.remove(&number));
        let number = all.next;
        all.next += 1;
        all.living += 1;
        all.open.insert(number, (from, closer));
        drop(all);
        // Its thread ends by that.
        let gone = gone.map(|(ip, stream)| {
            let _ = stream.shutdown(Shutdown::Both);
            ip
        });
        Ok((PendingConnection(self.clone(), number), gone))
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        let mut all = self.0.all();
        all.open.remove(&self.1);
        account::sub(
            &mut all.living,
            1,
            "connections that have not proven who they are",
        );
        debug_assert!(
            all.open.len() <= all.living,
            "a connection has a place and no thread"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn a_crowd_makes_space_for_itself() {
        const MOST_OF_ONE: usize = 8;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let connect = || {
            let near = TcpStream::connect(at).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let pending = PendingConnections::new(64, MOST_OF_ONE);
        let crowd = SocketAddr::from(([10, 0, 0, 1], 1));
        let other = SocketAddr::from(([10, 0, 0, 2], 1));
        let (mut quiet, far) = connect();
        let _other = pending.admit(&far, other).unwrap();
        let mut places = Vec::new();
        let (mut first, far) = connect();
        places.push(pending.admit(&far, crowd).unwrap());
        for n in 1..=MOST_OF_ONE {
            let (near, far) = connect();
            let admitted = pending.admit(&far, crowd).unwrap();
            assert_eq!(admitted.1.is_some(), n == MOST_OF_ONE, "{n}");
            places.push(admitted);
            drop(near);
        }
        // The first of the crowd was closed; the earlier connection, from elsewhere, was not.
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        quiet.set_nonblocking(true).unwrap();
        assert!(quiet.read(&mut [0]).is_err());
        // A connection that was sent away has a place until it ends.
        let mut more = 0;
        while let Ok(admitted) = pending.admit(&far, crowd) {
            places.push(admitted);
            more += 1;
            assert!(more < 200);
        }
        assert_eq!(places.len() + 1, 2 * 64);
        places.clear();
        assert_eq!(pending.all().open.len(), 1);
    }
}
