//! The map of the disk: four pictures with the same cells, in block order.

use super::disk::{COLUMNS, Cell, DiskMap};
use super::markup::Html;
use super::{counted, grouped};

/// Distance between adjacent cells, and the width of a cell.
const PITCH: u64 = 10;
const SIDE: u64 = 9;
/// Space for the group numbers at the left.
const MARGIN: u64 = 58;
/// Space above the first row for the top of its number.
const ABOVE: u64 = 4;

/// One of the four pictures.
struct Picture {
    title: &'static str,
    /// The CSS class that colours its levels, 0 to 4.
    class: &'static str,
    /// The meanings of the levels.
    legend: [&'static str; 5],
    level: fn(&DiskMap, &Cell) -> usize,
    summary: fn(&DiskMap) -> String,
}

const PICTURES: [Picture; 4] = [
    Picture {
        title: "Space in use",
        class: "use",
        legend: ["none", "up to 1/3", "up to 2/3", "more", "all"],
        level: |_, cell| match cell.used / cell.blocks.max(1) as f64 {
            share if share < 0.005 => 0,
            share if share <= 1.0 / 3.0 => 1,
            share if share <= 2.0 / 3.0 => 2,
            share if share < 0.995 => 3,
            _ => 4,
        },
        summary: |map| {
            let used: f64 = map.cells.iter().map(|cell| cell.used).sum();
            let all: u64 = map.cells.iter().map(|cell| cell.blocks).sum();
            format!("{:.0} % of all blocks are in use.", used / all.max(1) as f64 * 100.0)
        },
    },
    Picture {
        title: "Fragmentation of free space",
        class: "pieces",
        legend: ["none free", "contiguous", "256 blocks and more", "16 to 255 blocks", "smaller"],
        level: |_, cell| {
            if cell.free_runs == 0 {
                return 0;
            }
            match cell.free_seen / cell.free_runs {
                _ if cell.free_runs == 1 => 1,
                256.. => 2,
                16..=255 => 3,
                _ => 4,
            }
        },
        summary: |map| {
            let free: u64 = map.cells.iter().map(|cell| cell.free_seen).sum();
            let runs: u64 = map.cells.iter().map(|cell| cell.free_runs).sum();
            let average = counted(free.checked_div(runs).unwrap_or(0), "block");
            match map.bitmaps_seen {
                0 => "All block bitmaps are uninitialised: no group was ever used.".to_owned(),
                seen if seen == map.groups => {
                    format!("A free extent has {average} on average.")
                }
                seen => format!(
                    "A free extent has {average} on average, in the {} sampled.",
                    counted(u64::from(seen), "bitmap"),
                ),
            }
        },
    },
    Picture {
        title: "Metadata",
        class: "meta",
        legend: ["none", "up to 1/20", "up to 1/4", "more", "all"],
        level: |_, cell| match cell.metadata / cell.blocks.max(1) as f64 {
            share if share <= 0.0 => 0,
            share if share <= 0.05 => 1,
            share if share <= 0.25 => 2,
            share if share < 0.995 => 3,
            _ => 4,
        },
        summary: |map| {
            let blocks: f64 = map.cells.iter().map(|cell| cell.metadata).sum();
            let cells = map.cells.iter().filter(|cell| cell.metadata > 0.0).count() as u64;
            // A count of blocks, so the value is whole.
            let blocks = counted(blocks as u64, "block");
            format!(
                "Superblocks, descriptors, bitmaps and inode tables take {blocks}, in {}.",
                counted(cells, "cell")
            )
        },
    },
    Picture {
        title: "Damage",
        class: "damage",
        legend: ["none", "one finding", "several", "data at risk", "much at risk"],
        level: |_, cell| match (cell.damage, cell.at_risk) {
            (0, _) => 0,
            (1, 0) => 1,
            (_, 0) => 2,
            (_, 1..=4) => 3,
            _ => 4,
        },
        summary: |map| {
            let damage: u64 = map.cells.iter().map(|cell| cell.damage).sum();
            let cells = map.cells.iter().filter(|cell| cell.damage > 0).count() as u64;
            let placeless = match map.placeless {
                0 => String::new(),
                count => format!(
                    " {} no place on the disk.",
                    if count == 1 {
                        "One more has".to_owned()
                    } else {
                        format!("{} more have", grouped(count))
                    }
                ),
            };
            match damage {
                0 => format!("No damage has a place on the disk.{placeless}"),
                _ => format!(
                    "{} in {}.{placeless}",
                    counted(damage, "finding"),
                    counted(cells, "cell")
                ),
            }
        },
    },
];

/// The four pictures, with their legends.
pub fn map(html: &mut Html, map: &DiskMap) {
    html.element("section", &[("class", "card map")], |html| {
        html.leaf("h2", &[], "Map of the disk");
        let groups = map.cell_blocks as f64 / map.blocks_per_group as f64;
        let cell = if map.cell_blocks >= map.blocks_per_group {
            format!("{} blocks, {groups:.1} groups", grouped(map.cell_blocks))
        } else {
            format!("{} blocks", grouped(map.cell_blocks))
        };
        let text = format!(
            "In block order, from left to right and from top to bottom: {} of {cell}. \
             The numbers are group numbers.",
            counted(map.cells.len() as u64, "cell"),
        );
        html.leaf("p", &[("class", "detail")], &text);
        html.element("div", &[("class", "pictures")], |html| {
            for picture in &PICTURES {
                draw(html, map, picture);
            }
        });
    });
}

fn draw(html: &mut Html, map: &DiskMap, picture: &Picture) {
    let rows = (map.cells.len() as u64).div_ceil(COLUMNS);
    let (width, height) = (MARGIN + COLUMNS * PITCH, rows * PITCH);
    let summary = (picture.summary)(map);
    html.element("figure", &[], |html| {
        html.element("figcaption", &[], |html| {
            html.leaf("h3", &[], picture.title).leaf("p", &[], &summary);
        });
        // The number of the first row is taller than the row.
        let viewport = format!("0 -{ABOVE} {width} {}", height + ABOVE);
        let label = format!("{}: {summary}", picture.title);
        let attributes = [("viewBox", viewport.as_str()), ("role", "img"), ("aria-label", &label)];
        html.element("svg", &attributes, |html| {
            row_numbers(html, map, rows);
            let mut levels: [String; 5] = Default::default();
            for (at, cell) in (0u64..).zip(&map.cells) {
                let (x, y) = (MARGIN + at % COLUMNS * PITCH, at / COLUMNS * PITCH);
                let level = (picture.level)(map, cell).min(4);
                levels[level].push_str(&format!("M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z"));
            }
            for (level, path) in levels.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
                let class = format!("{} l{level}", picture.class);
                html.empty("path", &[("class", &class), ("d", path)]);
            }
        });
        html.element("ul", &[("class", "legend"), ("aria-label", "Legend")], |html| {
            for (level, text) in picture.legend.iter().enumerate() {
                html.element("li", &[], |html| {
                    let class = format!("{} l{level}", picture.class);
                    let viewport = [("viewBox", "0 0 9 9"), ("aria-hidden", "true")];
                    html.element("svg", &viewport, |html| {
                        html.empty("path", &[("class", &class), ("d", "M0 0h9v9h-9z")]);
                    });
                    html.text(text);
                });
            }
        });
    });
}

/// The first group of each labelled row.
fn row_numbers(html: &mut Html, map: &DiskMap, rows: u64) {
    let row_blocks = map.cell_blocks.saturating_mul(COLUMNS);
    // A number is taller than a row, so label every other one.
    for row in (0..rows).step_by(2) {
        let group = row.saturating_mul(row_blocks) / map.blocks_per_group;
        let (x, y) = ((MARGIN - 6).to_string(), (row * PITCH + PITCH - 2).to_string());
        let attributes = [("x", x.as_str()), ("y", y.as_str()), ("class", "row-number")];
        html.leaf("text", &attributes, &grouped(group));
    }
}
