//! `tarn cancel`.

use crate::calls::{count, sweep};
use crate::common::{Ran, Site, until};
use crate::verbs::of;
use std::cell::RefCell;
use std::fs;
use std::process::Child;

const FLOW: &str = r#"
name = "w"
[data.m]
[data.o]
dest = "out"
[[step]]
name = "first"
run = "echo one > $TARN_m/a"
out = ["m"]
[[step]]
name = "second"
run = "echo > $TARN_WORKFLOW_DIR/begun; until test -e $TARN_WORKFLOW_DIR/go; do sleep 0.02; done; cp $TARN_m/a $TARN_o/a"
in = ["m"]
out = ["o"]
"#;

/// A run in its second step, which continues until a signal ends it.
struct Running {
    site: Site,
    run: RefCell<Option<Child>>,
}

impl Running {
    fn new() -> Self {
        let site = Site::new(FLOW);
        let run = RefCell::new(Some(site.begin(&[])));
        let running = Self { site, run };
        until("the second step begins", || {
            running.site.path("begun").exists()
        });
        running
    }

    /// One that `cancel` cannot send a signal: the lock does not say who it is, as when it is taken on a full disk.
    fn unnamed() -> Self {
        let running = Self::new();
        fs::write(running.site.path(".tarn/locks/w.lock"), "").unwrap();
        running
    }

    fn is_over(&self) -> bool {
        let mut run = self.run.borrow_mut();
        run.as_mut()
            .is_none_or(|run| run.try_wait().unwrap().is_some())
    }

    /// Its result, once it has ended.
    fn end(&self) -> Ran {
        Ran::end(self.run.take().expect("a run"))
    }
}

impl Drop for Running {
    /// When a check has failed.
    fn drop(&mut self) {
        if let Some(run) = self.run.get_mut() {
            let _ = run.kill();
            let _ = run.wait();
        }
    }
}

pub(crate) fn a_run_that_is_cancelled() {
    let command = |running: &Running| of(&running.site, &["cancel"]);
    // By a signal it writes nothing.
    let running = Running::new();
    if let Some((ran, calls)) = count(command(&running)) {
        assert_eq!((ran.code, calls), (Some(0), 0), "{}", ran.err);
        running.end().exits(143);
    }
    drop(running);
    sweep(
        "cancel",
        "tarn",
        Running::unnamed,
        command,
        |running, hit| {
            let site = &running.site;
            if hit.done() {
                // Its lock is free a moment before it has ended.
                until(&format!("{}: it ends", hit.what), || running.is_over());
            }
            // 7: the run stopped because of the one that was killed.
            let again = site.tarn(&["cancel"]);
            let is_known = matches!(again.code, Some(0 | 7));
            assert!(is_known, "{}; cancel: {}", hit.what, again.err);
            let ended = running.end();
            assert_eq!(ended.code, Some(143), "{}: {}", hit.what, ended.err);
            assert!(!site.path("out").exists(), "{}", hit.what);
            // The wish was for that process.
            site.write("go", "");
            let resumed = site.tarn(&["resume"]);
            assert_eq!(resumed.code, Some(0), "{}: {}", hit.what, resumed.err);
            assert_eq!(site.read("out/a"), "one\n", "{}", hit.what);
            site.leaves_nothing_on_its_tier();
        },
    );
}
