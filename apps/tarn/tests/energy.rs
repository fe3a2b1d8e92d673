//! The power draw of a machine, emulated by a folder in the form of the kernel's: shown, and recorded with the step that drew it.

mod common;
use common::{Ran, Site};

const WORK: &str = r#"
name = "work"
[[step]]
name = "one"
run = 'sh "$PLAY"'
env = { PLAY = "PATH" }
"#;

/// A site with a step that does this to the counter of the machine's only package, at 7 J until then.
fn site(play: &str) -> Site {
    let site = Site::new("");
    let script = site.path("play.sh");
    let text = WORK.replace("PATH", &script.display().to_string());
    site.write("workflow.toml", &text);
    let zone = site.path("sys/class/powercap/intel-rapl:0");
    let text = format!("cd '{}'\n{play}\n", zone.display());
    site.write("play.sh", &text);
    let file = |name: &str, value: &str| {
        site.write(&format!("sys/class/powercap/intel-rapl:0/{name}"), value);
    };
    file("name", "package-0\n");
    file("energy_uj", "7000000\n");
    file("max_energy_range_uj", "262143328850\n");
    site.write("sys/class/hwmon/hwmon0/name", "coretemp\n");
    site.write("sys/class/hwmon/hwmon0/temp1_label", "Package id 0\n");
    site.write("sys/class/hwmon/hwmon0/temp1_input", "41000\n");
    site
}

fn tarn(site: &Site, arguments: &[&str]) -> Ran {
    let mut command = site.command(arguments);
    command.env("TARN_SYSFS", site.path("sys"));
    Ran::of(command.output().expect("tarn starts"))
}

fn usage(site: &Site) -> serde_json::Value {
    let log = site.log();
    let ended = log.iter().find(|r| r["event"] == "ended");
    ended.expect("it ended")["usage"].clone()
}

#[test]
fn a_step_has_the_energy_that_was_drawn_while_it_ran() {
    let site = site("echo 12500000 > energy_uj");
    let mut words = site.run_arguments();
    words.push("--json");
    let ran = tarn(&site, &words).exits(0);
    let energy = serde_json::json!({"millijoules": 5500, "source": "rapl"});
    assert_eq!(usage(&site)["energy"], energy);
    let summary = ran.summary();
    assert_eq!(summary["energy"]["measured"], energy);
    assert_eq!(summary["steps"][0]["energy"]["attempts"], 1);
    let options: Vec<&str> = site.options.iter().map(String::as_str).collect();
    let shown = tarn(&site, &[&["nodes"][..], &options].concat());
    shown.exits(0).prints("rapl, processor").prints("41 C");
}

#[test]
fn what_is_not_known_is_missing_and_not_0() {
    let site = site("rm energy_uj");
    let ran = tarn(&site, &site.run_arguments()).exits(0);
    assert!(usage(&site).get("energy").is_none(), "{}", usage(&site));
    assert!(!ran.out.contains("energy"), "{}", ran.out);
    // The file is gone now: there is no meter at all.
    let options: Vec<&str> = site.options.iter().map(String::as_str).collect();
    let nodes = tarn(&site, &[&["nodes", "--json"][..], &options].concat()).exits(0);
    let nodes: serde_json::Value = serde_json::from_str(&nodes.out).expect("JSON");
    assert!(nodes["tiers"][0].get("power").is_none(), "{nodes}");
    tarn(&site, &["doctor"]).exits(0).prints("power");
}
