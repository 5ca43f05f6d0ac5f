//! `cargo xtask shards --equal`: the report of shards and a merge is that of one check, byte for byte but for the cost.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::arguments;

/// How many shards check an image, in turn.
const COUNTS: [u32; 4] = [1, 2, 5, 16];

/// Compares the reports on an image; prints a line for each number of shards.
pub(super) fn run(floe: &Path, image: &Path) -> Result<()> {
    let json: OsString = "--json".into();
    let alone = report(floe, &arguments(image, std::slice::from_ref(&json)))?;
    for count in COUNTS {
        let folder = tempfile::tempdir()?;
        let (mut more, mut bytes) = (vec![json.clone(), "--merge".into()], 0);
        for index in 0..count {
            let part = folder.path().join(format!("part-{index}"));
            let share = format!("{index}/{count}");
            let options = ["--shard".into(), share.into(), "--out".into(), part.clone().into()];
            let status = Command::new(floe)
                .args(arguments(image, &options))
                .stdout(Stdio::null())
                .status()
                .with_context(|| floe.display().to_string())?;
            ensure!(status.success(), "shard {index}/{count} ended with {status}");
            bytes += fs::metadata(&part)?.len();
            more.push(part.into());
        }
        let merged = report(floe, &arguments(image, &more))?;
        ensure!(merged == alone, "{} in {count} shards:\n{alone}\n{merged}", image.display());
        println!("{}: {count} shards, {bytes} bytes of parts: the same report", image.display());
    }
    Ok(())
}

/// The report of a check without its cost.
fn report(floe: &Path, arguments: &[OsString]) -> Result<String> {
    let output = Command::new(floe).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{} wrote no report: {said}", floe.display()))?;
    let cost = report.as_object_mut().and_then(|members| members.remove("cost"));
    ensure!(cost.is_some(), "nothing was checked: {said}");
    Ok(report.to_string())
}
