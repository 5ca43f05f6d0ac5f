//! Evidence about groups that sums do not prove, from the second and third rounds of a check in shards.

use floe_exec::Accumulator;

use crate::checks::context::directory::DirEvidence;
use crate::checks::context::inode::InodeEvidence;
use crate::checks::space::bitmaps::Bitmaps;
use crate::error::PartRefusal;
use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Evidence from directory blocks and bitmaps that concern unproved groups: before the inodes of these groups were
/// known, and with them known. The second replaces the first.
#[derive(Debug, Default)]
pub struct Judged {
    /// Evidence of the directory blocks as the first round left it.
    pub names_before: DirEvidence,
    /// Evidence of the same blocks with the inodes known.
    pub names_after: DirEvidence,
    /// Evidence of the bitmaps as the first round left it.
    pub bitmaps_before: Bitmaps,
    /// Evidence of the same bitmaps with inodes and claims known.
    pub bitmaps_after: Bitmaps,
}

impl Judged {
    /// Whether it can be of a file system with this many directories. A forged part might not be.
    pub fn fits(&self, directories: usize) -> bool {
        self.names_before.fits(directories) && self.names_after.fits(directories)
    }
}

impl Accumulator for Judged {
    fn merge(&mut self, other: Self) {
        let Self { names_before, names_after, bitmaps_before, bitmaps_after } = other;
        self.names_before.merge(names_before);
        self.names_after.merge(names_after);
        self.bitmaps_before.merge(bitmaps_before);
        self.bitmaps_after.merge(bitmaps_after);
    }
}

impl Saved for Judged {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { names_before, names_after, bitmaps_before, bitmaps_after } = self;
        names_before.save(to);
        names_after.save(to);
        bitmaps_before.save(to);
        bitmaps_after.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok(Self {
            names_before: Saved::load(from)?,
            names_after: Saved::load(from)?,
            bitmaps_before: Saved::load(from)?,
            bitmaps_after: Saved::load(from)?,
        })
    }
}

/// The merged evidence of the rounds that were run.
#[derive(Debug, Default)]
pub struct Closer {
    /// A hash of the unproved groups that the rounds examined; `None` if none was run.
    pub suspects: Option<u128>,
    /// Facts and claims from the inode tables that concern these groups.
    pub learned: Option<InodeEvidence>,
    /// Evidence of directory blocks and bitmaps that concern these groups.
    pub judged: Option<Judged>,
}

impl Closer {
    /// Verifies that the rounds examined the unproved groups with this hash.
    ///
    /// # Errors
    /// [`PartRefusal::Foreign`] if they examined others: a machine read something else than this one.
    pub(crate) fn must_be_of(&self, suspects: u128) -> Result<(), PartRefusal> {
        if self.suspects.is_none_or(|examined| examined == suspects) {
            return Ok(());
        }
        let how = "it examined other groups than those that the shards leave unproved".to_owned();
        Err(PartRefusal::Foreign { name: "A refinement".to_owned(), how })
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::problem::{Problem, Sink};
    use crate::saved::tests::same;
    use floe_format::InodeNr;

    floe_exec::accumulator_laws!(
        Judged,
        (1u32..99, 0u32..9),
        |all: &mut Judged, (number, value): (u32, u32)| {
            let inode = InodeNr(number);
            all.names_before.named.push((number, value));
            all.names_after.dotdots.push((number, inode));
            all.bitmaps_before.found.push(Problem::InodeFaddrNonzero { inode, value });
            all.bitmaps_after.found.push(Problem::InodeFaddrNonzero { inode, value: value + 1 });
        },
        |all: Judged| same(all, |mut all: Judged| {
            all.names_before.named.sort_unstable();
            all.names_after.dotdots.sort_unstable();
            let of_bitmaps = [all.bitmaps_before.found, all.bitmaps_after.found];
            let of_bitmaps = of_bitmaps.map(crate::report::in_order);
            (all.names_before.named, all.names_after.dotdots, of_bitmaps)
        })
    );
}
