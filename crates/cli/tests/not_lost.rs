//! What was put, kept or delivered is there afterwards, whatever is asked for next.

mod common;

use common::Site;
use std::fs;

/// A site with a folder that fits on its tier once only.
fn folder() -> Site {
    let site = Site::new("");
    site.write("in/f", &"forty megabytes\n".repeat(40 * 65536));
    site
}

fn put(site: &Site) -> common::Ran {
    site.tarn(&["data", "put", "in", "one", "--tier", &site.options[1]])
}

#[test]
fn what_is_put_twice_is_there_and_takes_its_room_once() {
    let site = folder();
    put(&site).exits(0);
    for _ in 0..2 {
        put(&site).exits(0).says("already, unchanged");
    }
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert!(site.read("out/f") == site.read("in/f"));
    site.tarn(&["data", "release", "one"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_is_put_again_is_what_the_folder_holds_now() {
    let site = Site::new("");
    site.write("in/f", "one\n");
    put(&site).exits(0);
    // Of the same size and time: only its content tells.
    let time = fs::metadata(site.path("in/f")).and_then(|m| m.modified());
    site.write("in/f", "two\n");
    let file = fs::File::options().write(true).open(site.path("in/f"));
    file.and_then(|f| f.set_modified(time.expect("a time")))
        .expect("as it was");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "new"]).exits(0);
    assert_eq!(site.read("new/f"), "two\n");
    // And back.
    site.write("in/f", "one\n");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "old"]).exits(0);
    assert_eq!(site.read("old/f"), "one\n");
    site.tarn(&["data", "rm", "one"]).exits(0);
    site.leaves_nothing_on_its_tier();
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "again"]).exits(0);
}

#[test]
fn what_was_damaged_on_the_tier_is_put_again() {
    let site = Site::new("");
    site.write("in/f", "years of work\n");
    put(&site).exits(0);
    let place = site.tarn(&["data", "where", "one", "--json"]).exits(0);
    let place: serde_json::Value = serde_json::from_str(place.out.trim()).expect("JSON");
    let file = std::path::Path::new(place["path"].as_str().expect("a path")).join("f");
    fs::remove_file(&file).expect("the owner may");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert_eq!(site.read("out/f"), "years of work\n");
}

#[test]
fn a_put_that_is_killed_leaves_what_was_put_before() {
    let site = Site::new("");
    site.write("in/f", "first\n");
    put(&site).exits(0);
    site.write("in/f", "second\n");
    let mut killed = site.command(&["data", "put", "in", "one", "--tier", &site.options[1]]);
    killed.env("TARN_CRASH_AT", "5");
    let killed = common::Ran::of(killed.output().expect("tarn starts"));
    assert_eq!(killed.code, None, "{}", killed.err);
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert_eq!(site.read("out/f"), "second\n");
}

#[test]
fn how_long_it_is_kept_is_as_was_said_last() {
    let site = Site::new("");
    site.write("in/f", "first\n");
    let put = |keep: &str| {
        let all = ["data", "put", "in", "one", "--tier", &site.options[1]];
        site.tarn(&[&all[..], &["--keep", keep]].concat())
    };
    put("until-consumed")
        .exits(2)
        .says("as soon as it is there");
    put("7d").exits(0);
    put("forever").exits(0).says("already");
    site.tarn(&["data", "ls"]).exits(0).says("forever");
    put("2h").exits(0).says("already");
    site.tarn(&["data", "get", "one", "out"]).exits(0);
}
