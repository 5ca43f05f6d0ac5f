//! `bench --shape shared-blocks`: two files of a full file system claim one block. Measures the
//! cost of finding out which.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use floe_format::InodeNr;
use floe_testkit::Image;
use floe_testkit::oracle;
use floe_workload::fill::share_block;

use super::{Args, Program, Row, alternate, kept, median_wall, print_lines, scattered};

/// The damaged copy of an image, created if it does not exist yet.
fn damaged(image: &Path, inodes: u32) -> Result<PathBuf> {
    let path = image.with_extension("shared.img");
    kept(&path, |path| {
        scattered::copy(image, path)?;
        let copy = Image::open(path)?;
        // The first directory with files has inode 76; these two files are far apart.
        let file = |share: u32| InodeNr(76 + inodes / 100 * share / 100 * 100 + 31);
        share_block(&copy, file(20), file(85))?;
        let verdict = oracle::run(path, &["-fn"])?;
        ensure!(!verdict.clean() && verdict.text.contains("ultiply-claimed"), "{}", verdict.text);
        Ok(())
    })?;
    Ok(path)
}

/// Measures checks of the image and of its damaged copy, and prints how much longer the latter
/// take.
pub(crate) fn run(args: &Args, image: &Path) -> Result<()> {
    let damaged = damaged(image, args.inodes)?;
    let mut programs = Vec::new();
    for (path, exit) in [(image, 0), (damaged.as_path(), 4)] {
        programs.push(Program::e2fsck(path, exit));
        programs.extend(args.checks(path, exit)?);
    }
    let rows = alternate(args, &programs)?;
    let (clean, shared) = rows.split_at(rows.len() / 2);
    let mut lines = vec![
        [
            "program",
            "clean s",
            "shared block s",
            "shared / clean",
            "x e2fsck",
            "peak MiB",
            "read MB",
        ]
        .map(str::to_owned),
    ];
    let base = shared.first().map_or(f64::NAN, median_wall);
    for (clean, shared) in clean.iter().zip(shared) {
        lines.push(line(clean, shared, base));
    }
    let title = args.title("two files claim one block, file-intensive");
    print_lines(args, &title, &lines);
    Ok(())
}

fn line(clean: &Row, shared: &Row, base: f64) -> [String; 7] {
    let (before, after) = (median_wall(clean), median_wall(shared));
    [
        clean.name.clone(),
        format!("{before:.3}"),
        format!("{after:.3}"),
        format!("{:.2}", after / before),
        format!("{:.2}", base / after),
        format!("{:.1}", shared.median(|cost| cost.peak_mib)),
        format!("{:.1}", shared.median(|cost| cost.read_mb)),
    ]
}
