//! Witnesses of a leg: places that it read, and what was there.

use std::hash::Hasher;

use floe_format::{BlockNr, BlockRun};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::saved::{Decoder, Encoder, Fault, Saved};
use crate::volume::Volume;

/// Witnesses of a leg.
const OF_LEG: usize = 8;
/// Witnesses that are asked before a check goes on.
const ASKED: usize = 16;
/// Bytes of a place, at most.
const MOST_BYTES: u64 = 1 << 20;

/// A place, and a hash of what was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    run: BlockRun,
    hash: u128,
}

impl Witness {
    /// Hashes the present content of a run of blocks; only the start of a long run.
    fn of(volume: &Volume<'_>, run: BlockRun, buffer: &mut Vec<u8>) -> Self {
        let most = (MOST_BYTES / u64::from(volume.geometry.block_size)).max(1);
        let run = BlockRun::new(run.start, run.len_blocks.min(most));
        let mut hasher = SipHasher24::new();
        match volume.read_run(run, buffer) {
            Ok(()) => hasher.write(buffer),
            // An unreadable run hashes to a value of its own, so that a change shows as well.
            Err(_) => hasher.write(&[0]),
        }
        Self { run, hash: hasher.finish128().as_u128() }
    }

    /// Some of these places, as they are now. `key` says which.
    pub(super) fn some(
        volume: &Volume<'_>,
        places: impl Fn(usize) -> BlockRun,
        count: usize,
        key: &[u8; 16],
    ) -> Vec<Self> {
        let mut buffer = Vec::new();
        let chosen = choose(count, OF_LEG, key);
        chosen.into_iter().map(|at| Self::of(volume, places(at), &mut buffer)).collect()
    }

    /// Asks some of all witnesses; comes back with a place that is not as it was. `key` says which
    /// are asked.
    pub(super) fn find_changed(
        all: &[Self],
        volume: &Volume<'_>,
        key: &[u8; 16],
    ) -> Option<BlockNr> {
        let mut buffer = Vec::new();
        let mut asked = choose(all.len(), ASKED, key).into_iter().filter_map(|at| all.get(at));
        let changed = asked.find(|then| Self::of(volume, then.run, &mut buffer) != **then);
        changed.map(|witness| witness.run.start)
    }
}

/// At most `most` of `0..count`, ascending, each once.
fn choose(count: usize, most: usize, key: &[u8; 16]) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    let number = |at: u64| {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&at.to_le_bytes());
        // Below `count`.
        (hasher.finish128().as_u128() % count as u128) as usize
    };
    let mut chosen: Vec<usize> = (0..most as u64).map(number).collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

impl Saved for Witness {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { run: BlockRun { start, len_blocks }, hash } = self;
        start.save(to);
        len_blocks.save(to);
        hash.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let run = BlockRun::new(Saved::load(from)?, Saved::load(from)?);
        Ok(Self { run, hash: Saved::load(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_many_are_chosen_and_others_with_another_key() {
        assert_eq!(choose(3, 8, &[0; 16]), [0, 1, 2]);
        let (one, other) = (choose(10_000, 8, &[1; 16]), choose(10_000, 8, &[2; 16]));
        assert!(one.len() > 5 && one.iter().all(|&at| at < 10_000) && one != other);
    }
}
