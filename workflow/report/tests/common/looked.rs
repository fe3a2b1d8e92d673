//! Looks at a page in a real browser: no script fails, no text leaves its picture or meets another, all can be
//! read by day and by night, and nothing is wider than the window.

use crate::chromium::opened_with;

/// Stands first in the page: what fails from then on is noted.
const BEGIN: &str = "<script>const wrong = [];
addEventListener('error', (e) => wrong.push(`script: ${e.message}`));
addEventListener('securitypolicyviolation', (e) => wrong.push(`loads ${e.blockedURI}`));
</script>";

/// Stands last: looks at every text, and leaves in the document what is wrong.
const END: &str = include_str!("looked.js");

/// Chromium opens no window that has fewer pixels: a narrower one is a frame in it.
const LEAST: u32 = 500;

/// Pixels of a sheet of A4 between its margins, as browsers print.
const SHEET: u32 = 718;

/// Nothing of a page is cut or unreadable, from a phone to a wide screen, by day, by night and on paper.
pub(crate) fn is_readable(browser: &str, page: &str) {
    for (width, dark) in [
        (390, false),
        (390, true),
        (768, false),
        (1280, false),
        (1280, true),
        (2560, false),
    ] {
        let (wrong, was_dark) = looked_at(browser, page, width, dark);
        assert!(wrong.is_empty(), "{width} pixels, dark: {dark}: {wrong:#?}");
        assert_eq!(was_dark, dark);
    }
    // Dark colours are for screens only.
    assert!(!page.contains("@media (prefers-color-scheme"));
    let paper = page.replace("@media print", "@media all");
    let (wrong, _) = looked_at(browser, &paper, SHEET, false);
    assert!(wrong.is_empty(), "on paper: {wrong:#?}");
}

/// The defects of a page in a window of this width, and whether it was dark.
pub(crate) fn looked_at(browser: &str, page: &str, width: u32, dark: bool) -> (Vec<String>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let page = page.replace("<style>", &format!("{BEGIN}<style>"));
    let page = page.replace("</body>", &format!("<script>{END}</script></body>"));
    let page = if width < LEAST {
        let inside = page.replace('&', "&amp;").replace('"', "&quot;");
        format!(
            "<!doctype html><iframe style=\"border:0\" width=\"{width}\" height=\"1800\" srcdoc=\"{inside}\"></iframe>"
        )
    } else {
        page
    };
    std::fs::write(&file, page).unwrap();
    let scheme = format!(
        "--blink-settings=preferredColorScheme={}",
        if dark { 0 } else { 1 }
    );
    let size = format!("--window-size={width},1800");
    let dom = opened_with(browser, &file, &[&scheme, &size]);
    let attribute = |name: &str| {
        let rest = dom.split(&format!(" data-{name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().replace("&quot;", "\"")
    };
    assert_eq!(
        attribute("width"),
        width.to_string(),
        "the browser's window"
    );
    (
        serde_json::from_str(&attribute("wrong")).unwrap(),
        attribute("dark") == "true",
    )
}
