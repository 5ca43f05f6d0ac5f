//! Check: the record in the superblock that says how large the metadata regions of rext3 are (`docs/rext3.md`).
//! Reads: the superblock.  Keeps: nothing.  Emits: `Rext3RecordWrong`.
//! Does not verify: what lies in the regions: maps of inodes lead there.

use floe_format::features::Incompat;
use floe_format::rext3::Record;

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Checks the record; nothing in another file system.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    if volume.has_incompat(Incompat::REXT3) && Record::of(&volume.superblock).is_none() {
        let reason = "its record is missing or cannot be";
        found.push(Problem::Rext3RecordWrong { reason });
    }
}
