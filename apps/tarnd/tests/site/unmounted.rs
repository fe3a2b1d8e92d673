//! A store whose file system is not mounted.

use std::path::Path;
use std::process::Command;

#[test]
fn a_store_that_is_not_there_is_not_made_on_the_root_disk() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a site's tarnd is run by root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let lost = format!("/tarn-no-such-{}", std::process::id());
    for root in [format!("{lost}/tarn"), format!("/tmp/..{lost}/tarn")] {
        let output = Command::new(env!("CARGO_BIN_EXE_tarnd"))
            .args(["--site", "--store", &format!("{root}:1GiB")])
            .args(["--listen", "127.0.0.1:0", "--run-dir"])
            .arg(folder.path().join("run"))
            .arg("--audit")
            .arg(folder.path().join("audit"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{text}");
        assert!(
            text.contains("would be made on the node's root disk"),
            "{text}"
        );
        assert!(!Path::new(&lost).exists());
    }
}
