//! The Python packages in `python/`: their own tests, with the newly built program.

use std::path::Path;
use std::process::Command;

/// Runs a file of tests. `FLOE_PYTHON` names a Python that has PySpark, for instance in a virtual environment.
fn tests(file: &str) {
    let python = std::env::var_os("FLOE_PYTHON").unwrap_or_else(|| "python3".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let output = Command::new(&python)
        .args(["-B", "-m", "unittest", "discover", "-v", "-s", "tests", "-p", file])
        .current_dir(&folder)
        .env("PYTHONPATH", folder.join("src"))
        .env("FLOE", env!("CARGO_BIN_EXE_floe"))
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: {} cannot be started", python.display());
        return;
    };
    // It names the tests, those that it skips with the reason.
    let text = String::from_utf8_lossy(&output.stderr);
    eprintln!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("Ran 0 tests"), "{text}");
}

#[test]
fn the_package_checks_and_merges() {
    tests("test_floe.py");
}

#[test]
fn spark_checks_fleets_and_devices() {
    tests("test_spark.py");
}

#[test]
fn the_packages_are_typed() {
    tests("test_types.py");
}

#[test]
fn the_wheel_needs_no_other_floe() {
    tests("test_wheel.py");
}

#[test]
fn kubernetes_knows_the_recipes() {
    tests("test_kubernetes.py");
}
