//! `bench --shape aged`: an ageing file system with extents and with indirect blocks. Measures
//! checks at each age: the processing rate of each program (figure 11 of the ffsck paper) and its
//! memory use.

use std::path::Path;

use anyhow::Result;
use floe_workload::fill::aged::{Aged, Map};

use super::{Args, Program, Row, alternate, median_wall, print_lines, prove};

/// Operations per file between two ages.
const OPERATIONS: u64 = 2;

/// Measures a file system with each kind of block map at every age, from new to `args.ages`.
pub(crate) fn run(args: &Args) -> Result<()> {
    for map in [Map::Extents, Map::Indirect] {
        let path = args.folder.join("aged.img");
        let mut aged = Aged::new(map, args.inodes, 1, &path)?;
        let mut lines = Vec::new();
        let mut first = Vec::new();
        for age in 0..=args.ages {
            if age > 0 {
                aged.age(OPERATIONS * u64::from(args.inodes))?;
            }
            aged.write(&path)?;
            prove(&path)?;
            let rows = measure(args, &path)?;
            if lines.is_empty() {
                lines.push(header(&rows));
                first = rows.iter().map(median_wall).collect();
            }
            lines.push(line(age, &aged, &rows, &first));
        }
        std::fs::remove_file(&path)?;
        let kind = if map == Map::Extents { "extents" } else { "indirect blocks" };
        print_lines(args, &args.title(&format!("aged, {kind}")), &lines);
    }
    Ok(())
}

/// Writes the image of a file system aged once, with the given kind of block maps.
pub(crate) fn build(path: &Path, map: Map, inodes: u32) -> Result<()> {
    let mut aged = Aged::new(map, inodes, 1, path)?;
    aged.age(OPERATIONS * u64::from(inodes))?;
    aged.write(path)?;
    Ok(())
}

fn measure(args: &Args, path: &Path) -> Result<Vec<Row>> {
    let mut programs = vec![Program::e2fsck(path, 0)];
    let mut list = None;
    if args.cold {
        let of_image = super::same_bytes::list(path)?;
        programs.push(Program::sequential(path, &of_image)?);
        list = Some(of_image);
    }
    programs.extend(args.checks(path, 0)?);
    let rows = alternate(args, &programs)?;
    if let Some(list) = list {
        std::fs::remove_file(list)?;
    }
    Ok(rows)
}

fn header(rows: &[Row]) -> Vec<String> {
    let mut header = vec!["age".to_owned(), "pieces a file".to_owned(), "map blocks".to_owned()];
    for row in rows {
        header.push(format!("{} s", row.name));
        header.push("x new".to_owned());
        header.push("MB/s".to_owned());
        header.push("peak MiB".to_owned());
        if row.name.starts_with("floe") {
            header.push("x e2fsck".to_owned());
        }
    }
    header.push("read MB".to_owned());
    header
}

fn line(age: u32, aged: &Aged, rows: &[Row], first: &[f64]) -> Vec<String> {
    let (files, pieces, nodes) = aged.counts();
    let pieces = format!("{:.2}", pieces as f64 / files.max(1) as f64);
    let mut line = vec![age.to_string(), pieces, nodes.to_string()];
    let base = rows.first().map_or(f64::NAN, median_wall);
    for (row, first) in rows.iter().zip(first) {
        let wall = median_wall(row);
        line.push(format!("{wall:.3}"));
        line.push(format!("{:.2}", wall / first));
        line.push(format!("{:.0}", row.median(|cost| cost.read_mb) / wall));
        line.push(format!("{:.1}", row.median(|cost| cost.peak_mib)));
        if row.name.starts_with("floe") {
            line.push(format!("{:.2}", base / wall));
        }
    }
    line.push(
        rows.last()
            .map_or_else(String::new, |row| format!("{:.1}", row.median(|cost| cost.read_mb))),
    );
    line
}
