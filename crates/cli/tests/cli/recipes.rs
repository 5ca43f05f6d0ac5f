//! The recipes in `dist/`, for systemd and Kubernetes: their tools accept them, their command lines
//! work, and the documentation shows them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use floe_testkit::{Image, build};
use serde_json::Value;

use super::{floe, image};

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(dist(name)).unwrap()
}

/// The arguments of the program that a unit starts, with systemd's specifiers replaced by `parts`.
fn started(unit: &str, parts: &[(&str, &str)]) -> Vec<String> {
    let text = text(&format!("systemd/{unit}"));
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/floe "));
    let words = line.unwrap().split(' ').filter(|word| *word != "--journald");
    let filled =
        |word: &str| parts.iter().fold(word.to_owned(), |word, (of, by)| word.replace(of, by));
    words.map(filled).collect()
}

/// A file in a single group has too high a link count.
fn damage(image: &Image) {
    build::debugfs(image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
}

/// The units with the newly built program.
#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze cannot be started");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut units = 0;
    for entry in fs::read_dir(dist("systemd")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let unit = text(&format!("systemd/{name}"));
        let unit = unit.replace("/usr/bin/floe", env!("CARGO_BIN_EXE_floe"));
        fs::write(folder.path().join(&name), unit).unwrap();
        let instance = if name.starts_with("floe-check@") { "@srv." } else { "@dev-sdb1." };
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(folder.path().join(name.replace("@.", instance)))
            .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("floe")).collect();
        assert!(output.status.success() && ours.is_empty(), "{name}: {said}");
        units += 1;
    }
    assert_eq!(units, 5);
}

#[test]
fn what_the_unit_of_online_checks_starts_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().to_str().unwrap();
    let parts = [("${METRICS_FOLDER}", metrics), ("%i", "proc"), ("%f", "/proc")];
    let ran = floe(&started("floe-check@.service", &parts));
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert!(ran.err.contains("/proc is a proc file system"), "{}", ran.err);
    assert!(folder.path().join("floe-proc.prom").exists());
}

#[test]
fn the_unit_of_repairs_repairs_what_costs_nothing() {
    let Some(image) = image("ext4-1k") else { return };
    damage(&image);
    let line = started("floe-repair@.service", &[("%f", image.path().to_str().unwrap())]);
    assert_eq!([floe(&line).code, floe(&line).code], [1, 0]);
    let unit = text("systemd/floe-repair@.service");
    assert!(unit.contains("\nSuccessExitStatus=1\n"), "what was repaired is mounted");
}

#[test]
fn the_unit_of_checks_of_devices_goes_on_where_it_was() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let parts =
        [("/var/lib/floe", state), ("/dev/%I", image.path().to_str().unwrap()), ("%i", "sdb1")];
    let line = started("floe-check-device@.service", &parts);
    assert_eq!(floe(&line).code, 0);
    damage(&image);
    assert_eq!(floe(&line).code, 4);
    let unit = text("systemd/floe-check-device@.service");
    assert!(unit.contains("\nRestartForceExitStatus=32\n"), "32: ended by a signal");
    assert!(!unit.contains("Type=oneshot"), "systemd refuses that together with it");
}

/// The Job after validation by Kubernetes' own client; `None` without a client.
fn job() -> Option<Value> {
    let output = Command::new("kubectl")
        .args(["label", "--local", "--output=json", "a=b", "-f"])
        .arg(dist("kubernetes/check-job.yaml"))
        .stderr(Stdio::inherit())
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: kubectl cannot be started");
        return None;
    };
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// All field names in a value, with repetitions.
fn fields(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                into.push(name.clone());
                fields(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, into)),
        _ => {}
    }
}

#[test]
fn kubernetes_knows_all_fields_of_the_job() {
    let Some(job) = job() else { return };
    let mut known = Vec::new();
    fields(&job, &mut known);
    // The client drops unknown fields.
    for line in
        text("kubernetes/check-job.yaml").lines().filter(|line| !line.trim().starts_with('#'))
    {
        let line = line.trim().trim_start_matches("- ");
        let Some((field, _)) = line.split_once(':') else { panic!("no field: {line}") };
        assert!(known.iter().any(|name| name == field), "{field} is not known");
    }
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let volumes: Vec<&Value> =
        pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    for of in ["volumeDevices", "volumeMounts"] {
        for used in container[of].as_array().unwrap() {
            assert!(volumes.contains(&&used["name"]), "there is no volume {used}");
        }
    }
    let rule = &job["spec"]["podFailurePolicy"]["rules"][0];
    assert_eq!(rule["onExitCodes"]["containerName"], container["name"]);
    assert_eq!(pod["restartPolicy"], "Never", "what a policy of failures asks for");
}

#[test]
fn the_job_checks_a_volume() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = text("kubernetes/check-job.yaml");
    let line = job.lines().find_map(|line| line.trim().strip_prefix("command: [floe, "));
    let line = line.unwrap().trim_end_matches(']');
    let words = line.split(", ").map(|word| {
        let word = word.replace("/state", folder.path().to_str().unwrap());
        word.replace("/dev/data-0", image.path().to_str().unwrap())
    });
    let ran = floe(&words.collect::<Vec<_>>());
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// The pages show the recipes without their leading comments.
#[test]
fn pages_show_the_recipes_that_are_there() {
    for (page, recipe) in [
        ("resume", "systemd/floe-check-device@.service"),
        ("resume", "kubernetes/check-job.yaml"),
        ("automation", "systemd/floe-repair@.service"),
    ] {
        let page = fs::read_to_string(dist(&format!("../docs/{page}.md"))).unwrap();
        let recipe = text(recipe);
        let at = recipe.lines().take_while(|line| line.starts_with('#')).map(|line| line.len() + 1);
        let shown = recipe[at.sum::<usize>()..].trim();
        assert!(page.contains(shown), "the page shows another:\n{shown}");
    }
}
