//! A real browser, and the document that it makes of a report. The tests of the command read it from here as well.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds until a browser that hangs is killed: opening takes a few.
const TIMEOUT: &str = "120";

/// A browser on this machine, or a loud reason to skip; where everything must be tested (`CI=true`) there must be one.
pub(crate) fn browser() -> Option<&'static str> {
    let known = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = known.into_iter().find(|name| {
        let mut version = Command::new(name);
        version.arg("--version").stdin(Stdio::null());
        version.output().is_ok_and(|o| o.status.success())
    });
    if found.is_none() {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "CI=true, and there is no browser: install chromium");
        eprintln!(
            "SKIPPED: no browser ({}); the report was not opened in one",
            known.join(", ")
        );
    }
    found
}

/// The document after its scripts have run to their end, without a value that is no number. The browser keeps
/// its files beside the page.
pub(crate) fn opened(browser: &str, page: &Path) -> String {
    opened_with(browser, page, &[])
}

/// The same with options of the browser's.
pub(crate) fn opened_with(browser: &str, page: &Path, options: &[&str]) -> String {
    let folder = page.parent().expect("a folder");
    let output = Command::new("timeout")
        .args(["-k", "5", TIMEOUT, browser, "--headless", "--no-sandbox"])
        .args(["--disable-gpu", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-dev-shm-usage"])
        .arg("--disable-component-update")
        .arg(format!("--user-data-dir={}/profile", folder.display()))
        .args(["--window-size=1300,1800", "--dump-dom"])
        .args(options)
        .arg(format!("file://{}", page.display()))
        .env("HOME", folder)
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let dom = String::from_utf8(output.stdout).expect("the document is UTF-8");
    assert!(
        dom.contains("data-ready=\"yes\""),
        "a script did not run to its end"
    );
    assert!(!dom.contains("NaN"), "something is no number");
    dom
}

/// An element shows this many bytes: the exact value behind it, and the text that people read.
#[track_caller]
pub(crate) fn shows(dom: &str, id: &str, bytes: u64) {
    let (_, rest) = dom
        .split_once(&format!("id=\"{id}\" data-bytes=\""))
        .unwrap_or_else(|| panic!("{id} is missing"));
    let (exact, rest) = rest.split_once('"').expect("an attribute ends");
    let (_, rest) = rest.split_once('>').expect("a tag ends");
    let text = rest.split_once('<').expect("an element ends").0;
    let read = tarn_types::units::Bytes(bytes).to_string();
    assert_eq!((exact, text), (&*bytes.to_string(), &*read), "{id}");
}
