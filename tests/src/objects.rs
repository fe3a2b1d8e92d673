//! An object store that the nodes of a test cluster reach: Swift (scripts/swift.py), on its login node.

use crate::slurm::{Cluster, run_for_output, wait_until};
use crate::tree;
use std::fs;
use std::time::Duration;

/// The login node's, which all nodes reach (tests/cluster/site.sh).
const ADDRESS: &str = "10.77.0.254";
/// How long it may take to start.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The key that it takes.
pub const KEY: &str = "test:tester";
/// The secret that belongs to it.
pub const SECRET: &str = "testing";

/// A store, which ends with its cluster. Everything here panics where it does not do its part.
#[derive(Debug)]
pub struct Objects<'a> {
    cluster: &'a Cluster,
    /// Its S3 address.
    pub endpoint: String,
}

impl<'a> Objects<'a> {
    /// Starts it.
    pub fn start(cluster: &'a Cluster) -> Self {
        let shared = cluster.shared();
        for script in ["scripts/swift.py", "tests/cluster/s3-client.py"] {
            let from = tree::root().join(script);
            let to = shared.join(from.file_name().expect("a name"));
            fs::copy(&from, to).expect(script);
        }
        // It ends when its standard input does.
        let line = format!(
            "( sleep infinity | setsid python3 /shared/swift.py /shared/swift {ADDRESS} ) < /dev/null > /shared/swift.ready \
             2> /shared/swift.log &"
        );
        run_for_output(&mut cluster.command("root", &["sh", "-c", &line])).expect("Swift");
        let ready = || fs::read_to_string(shared.join("swift.ready")).unwrap_or_default();
        let is_ready = || ready().ends_with('\n');
        if let Err(e) = wait_until("Swift answers", TIMEOUT, is_ready) {
            let log = fs::read_to_string(shared.join("swift.log")).unwrap_or_default();
            panic!("{e:#}\n{log}");
        }
        let ready = ready();
        let endpoint = ready.trim().strip_prefix("ready ").expect("an address");
        Self {
            cluster,
            endpoint: endpoint.to_owned(),
        }
    }

    /// The beginning of a command whose user is set by variables: `env` and these.
    #[must_use]
    pub fn variables(&self) -> String {
        format!(
            "env AWS_ENDPOINT_URL={} AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET}",
            self.endpoint
        )
    }

    fn answers(&self, words: &[&str]) -> anyhow::Result<String> {
        let client = ["python3", "/shared/s3-client.py", &self.endpoint];
        run_for_output(&mut self.cluster.command("root", &[&client[..], words].concat()))
    }

    /// The output of a client that has nothing of tarn's (tests/cluster/s3-client.py).
    pub fn client_output(&self, words: &[&str]) -> String {
        self.answers(words).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// The keys of a bucket that begin with a prefix.
    pub fn keys(&self, bucket: &str, prefix: &str) -> Vec<String> {
        let output = self.client_output(&["keys", bucket, prefix]);
        output.lines().map(str::to_owned).collect()
    }

    /// How many parts the uploads to a bucket have that have not ended, each.
    pub fn uploads(&self, bucket: &str) -> Vec<usize> {
        // One that ends meanwhile has no parts to list any more.
        let output = self.answers(&["uploads", bucket]).unwrap_or_default();
        let parts = output.lines().filter_map(|line| line.rsplit(' ').next());
        parts.filter_map(|number| number.parse().ok()).collect()
    }
}
