//! Reports of `floe salvage`: totals, and the objects that are not whole.

use std::collections::BTreeMap;
use std::io::{self, Write};

use floe_ext4::files::printable;
use floe_format::ext::inode::FileType;
use floe_format::words::agree;
use floe_salvage::{Object, ObjectState, Origin, Provenance, Salvaged, Summary};
use serde_json::{Value, json};

use crate::human::grouped;

/// Version of the schema `floe-salvage`.
const VERSION: u32 = 1;
/// Objects listed, at most; the totals count all.
const MOST_LISTED: usize = 100_000;

/// Missing ranges listed of one object, at most; `missing_bytes` counts all.
const MOST_RANGES: usize = 1000;

/// The account of a run.
#[derive(Debug)]
pub struct Account {
    summary: Summary,
    /// Numbers of objects by type and state.
    totals: BTreeMap<(&'static str, ObjectState), u64>,
    /// Those that are not whole, up to [`MOST_LISTED`].
    listed: Vec<Object>,
}

impl Account {
    /// Walks through the rebuilt tree.
    pub fn of(salvaged: &Salvaged<'_>) -> Self {
        let mut totals = BTreeMap::new();
        let mut listed = Vec::new();
        salvaged.inventory(|object| {
            *totals.entry((type_name(object.file_type), object.state)).or_default() += 1;
            if object.state != ObjectState::Whole && listed.len() < MOST_LISTED {
                listed.push(object);
            }
        });
        Self { summary: salvaged.summary.clone(), totals, listed }
    }

    /// Whether anything is lost, or uncertain.
    pub fn has_losses(&self) -> bool {
        self.count(|state| state != ObjectState::Whole) > 0
            || self.summary.unnamed > 0
            || self.summary.names_from_journal > 0
            || self.summary.maps_rebuilt > 0
            || self.summary.directories_rebuilt > 0
            || !self.summary.losses.partial_directories.is_empty()
            || self.summary.losses.missing_bytes > 0
            || self.summary.losses.cut.is_some()
            || self.summary.losses.unreadable_blocks > 0
            || self.summary.origin != Origin::Superblock
    }

    fn count(&self, wanted: impl Fn(ObjectState) -> bool) -> u64 {
        self.totals.iter().filter(|((_, state), _)| wanted(*state)).map(|(_, count)| count).sum()
    }

    /// The account as JSON (docs/salvage.md).
    pub fn json(&self, device: &str, exit_code: u8) -> Value {
        let summary = &self.summary;
        let totals: Vec<Value> = self
            .totals
            .iter()
            .map(|((kind, state), count)| json!({"type": kind, "state": state.name(), "count": count}))
            .collect();
        let shown = self.listed.len() as u64;
        json!({
            "schema": "floe-salvage",
            "version": VERSION,
            "floe": env!("CARGO_PKG_VERSION"),
            "device": device,
            "exit_code": exit_code,
            "superblock": origin_name(summary.origin),
            "checksums": summary.has_checksums,
            "unreadable_blocks": summary.losses.unreadable_blocks,
            "missing_bytes": summary.losses.missing_bytes,
            "cut": summary.losses.cut.map(|cut| json!({
                "bytes": cut.missing_bytes,
                "begins_behind": cut.begins_behind_bytes,
                "ends_before": cut.ends_before_bytes,
            })),
            "inodes": {
                "in_place": summary.inodes.in_place,
                "from_copies": summary.inodes.from_copies,
                "copies_refused": summary.inodes.copies_refused,
            },
            "rebuilt": {
                "maps": summary.maps_rebuilt,
                "files_from_extents": summary.files_from_extents,
                "files_numbered": summary.files_numbered,
                "directories": summary.directories_rebuilt,
                "directories_extended": summary.directories_extended,
                "names_from_journal": summary.names_from_journal,
                "unnamed": summary.unnamed,
                "placed_by_hints": summary.inodes.placed_by_hints,
                "sizes": summary.inodes.sizes_corrected,
            },
            "directories_partial": summary.losses.partial_directories.len(),
            "totals": totals,
            "objects": self.listed.iter().map(object_json).collect::<Vec<_>>(),
            "objects_omitted": self.count(|state| state != ObjectState::Whole).saturating_sub(shown),
        })
    }

    /// The account as text.
    ///
    /// # Errors
    /// A write error of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let summary = &self.summary;
        match summary.origin {
            Origin::Superblock => {}
            Origin::Found(byte) => writeln!(out, "The superblock was found at byte {byte}.")?,
            Origin::Guessed => writeln!(
                out,
                "There is no superblock. Block size and checksum seed come from directory blocks."
            )?,
        }
        if !summary.has_checksums {
            writeln!(
                out,
                "This file system has no metadata checksums, so blocks do not say whose they are."
            )?;
        }
        if summary.losses.missing_bytes > 0 {
            let missing = format!("{} bytes are missing", grouped(summary.losses.missing_bytes));
            let missing = agree(&missing);
            writeln!(out, "The device is shorter than its file system: at the end {missing}.")?;
        }
        if let Some(cut) = summary.losses.cut {
            let [missing, first, last] =
                [cut.missing_bytes, cut.begins_behind_bytes, cut.ends_before_bytes].map(grouped);
            let missing = format!("{missing} bytes are missing");
            let missing = agree(&missing);
            writeln!(
                out,
                "From the middle of the file system {missing}, between bytes {first} and {last}. Everything behind is read where it \
                 lies now. Files with blocks between the two may have bytes of others."
            )?;
        }
        let rows = [
            (summary.inodes.in_place, "inodes are in their places"),
            (summary.inodes.from_copies, "inodes come from old copies, most in the journal"),
            (
                summary.inodes.copies_refused,
                "old copies of inodes were refused: other files own their blocks",
            ),
            (summary.maps_rebuilt, "maps of files were rebuilt from extent blocks"),
            (
                summary.files_from_extents,
                "files without an inode were found by their extent blocks",
            ),
            (summary.files_numbered, "of them have a known inode number"),
            (summary.directories_rebuilt, "directories without an inode were rebuilt"),
            (summary.losses.partial_directories.len() as u64, "directories have lost entries"),
            (summary.inodes.sizes_corrected, "files had an impossible size, which was corrected"),
            (summary.directories_extended, "directories were completed"),
            (summary.names_from_journal, "names come from old directory blocks in the journal"),
            (summary.unnamed, "files and directories lost their names"),
            (summary.inodes.placed_by_hints, "of them are in the directory that their inodes name"),
            (summary.losses.unreadable_blocks, "blocks cannot be read"),
        ];
        for (count, text) in rows.iter().filter(|(count, _)| *count > 0) {
            writeln!(out, "{:>12} {text}", grouped(*count))?;
        }
        writeln!(out)?;
        for state in ObjectState::ALL {
            let kinds: Vec<String> = self
                .totals
                .iter()
                .filter(|((_, of), _)| *of == state)
                .map(|((kind, _), count)| format!("{} {kind}", grouped(*count)))
                .collect();
            if !kinds.is_empty() {
                writeln!(out, "{:>12}: {}", state.name(), kinds.join(", "))?;
            }
        }
        Ok(())
    }
}

const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Superblock => "usual place",
        Origin::Found(_) => "found elsewhere",
        Origin::Guessed => "none",
    }
}

/// A type in reports, in the plural.
const fn type_name(file_type: Option<FileType>) -> &'static str {
    match file_type {
        Some(FileType::Regular) => "files",
        Some(FileType::Directory) => "directories",
        Some(FileType::Symlink) => "symbolic links",
        Some(FileType::CharDevice | FileType::BlockDevice) => "devices",
        Some(FileType::Fifo) => "fifos",
        Some(FileType::Socket) => "sockets",
        None => "names",
    }
}

fn object_json(object: &Object) -> Value {
    let missing = object.missing.iter().take(MOST_RANGES);
    let missing =
        missing.map(|range| json!({"offset": range.start, "bytes": range.end - range.start}));
    json!({
        "path": printable(&object.path),
        "inode": object.inode.map(|inode| inode.0),
        "type": type_name(object.file_type),
        "state": object.state.name(),
        "source": object.provenance.map(source_name),
        "faults": object.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "beside_cut": object.is_beside_cut,
        "missing": missing.collect::<Vec<_>>(),
        "missing_bytes": object.missing.iter().map(|range| range.end - range.start).sum::<u64>(),
    })
}

const fn source_name(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Copy => "old copy of the inode",
        Provenance::Map { .. } => "inode and extent blocks",
        Provenance::Extents { is_named: true, .. } => "extent blocks, inode number known",
        Provenance::Extents { is_named: false, .. } => "extent blocks, inode number unknown",
        Provenance::Size => "inode, with the size of its map",
        Provenance::Directory => "directory blocks",
        Provenance::Extended => "inode, with more entries",
    }
}
