//! The sub-superblock of a cube: a block that says where the cube is, which lots it has and how it is to behave.
//!
//! There are two copies of each in the file `/.cubes/super`; [`newest`] picks the one that counts.

use crate::crc::crc32c;

/// Bytes of a sub-superblock: the block of a native file system.
pub const BLOCK_BYTES: usize = 4096;
/// `magic`: "Fcub" in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Fcub");
/// `version` of the sub-superblock that this crate describes.
pub const VERSION: u16 = 1;
/// Most bytes of the path.
pub const MOST_PATH_BYTES: usize = 2048;
/// Most lots in the list. A cube with more of them is known by the records of its lots alone.
pub const MOST_LOTS: usize = 480;
/// Numbers of cubes are 1 to this one. 0 is the root cube, which has no sub-superblock.
pub const MOST_CUBES: u32 = 0x7fff;
/// Name in `/.cubes` of the file with the sub-superblocks.
pub const SUPER_NAME: &[u8] = b"super";

/// Name in `/.cubes` of the file that holds the free blocks of all cubes while another system may write.
pub const FENCE_NAME: &[u8] = b"fence";

/// Logical block of the second copy of cube 0.
const SECOND: u64 = 0x8000;
/// Size of `/.cubes/super` in bytes; most of it is a hole.
pub const SUPER_BYTES: u64 = 2 * SECOND * BLOCK_BYTES as u64;

const PATH_OFFSET: usize = CubeHeader::SIZE;
const LOTS_OFFSET: usize = PATH_OFFSET + MOST_PATH_BYTES;
const CHECKSUM_OFFSET: usize = 0x7c;

layout! {
    /// The fixed part of a sub-superblock (its first 128 bytes). The path follows at byte 128, the list of lots, of 4 bytes
    /// each, at byte 2176.
    pub struct CubeHeader[128] little {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`VERSION`].
        0x04 version: u16,
        /// Bytes of the path.
        0x06 path_bytes: u16,
        /// Number of the cube.
        0x08 cube: u32,
        /// Inode of the cube's directory.
        0x0c top_inode: u32,
        /// How often the sub-superblock was written.
        0x10 epoch: u64,
        /// Most blocks of the cube's lots; 0: no limit.
        0x18 limit_blocks: u64,
        /// Lots in the list.
        0x20 lot_count: u16,
        /// [`JournalMode`].
        0x22 journal_mode: u8,
        /// [`OnError`].
        0x23 on_error: u8,
        /// [`Recovery`].
        0x24 recovery: u8,
        /// [`FsyncMode`].
        0x25 fsync_mode: u8,
        /// [`State`].
        0x26 state: u8,
        /// Reserved; 0.
        0x27 padding: u8,
        /// Inode of the cube's journal; 0: none of its own.
        0x28 journal_inode: u32,
        /// Blocks of its log, its superblock included. The block behind them lists orphans.
        0x2c journal_blocks: u32,
        /// UUID of the journal.
        0x30 journal_uuid: [u8; 16],
        /// Smallest number of the cubes that this one is coupled with, itself among them, and 1; 0: it is coupled with none.
        0x40 coupled: u32,
        /// Reserved; 0.
        0x44 reserved: [u32; 14],
        /// crc32c of the block, this field taken as zero.
        0x7c checksum: u32,
    }
}

/// An attribute with few values, each with a name and a number on the disk.
macro_rules! attribute {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $value:ident = $number:literal $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $($(#[$note])* $value = $number,)*
        }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];

            /// The name that administrators use.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)* }
            }

            /// The value of a name.
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }

            fn of_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| *value as u8 == number)
            }
        }
    };
}

attribute! {
    /// The kind of blocks that the journal logs. The numbers 1, 3 and 4 are those of modes that nobody ever wrote
    /// (`docs/cubes.md`).
    JournalMode {
        /// Metadata; data are in their places before.
        #[default]
        Ordered = 0 "ordered",
        /// Data, too.
        Data = 2 "data",
    }
}
attribute! {
    /// The reaction to damage in the cube.
    OnError {
        /// The cube is only read.
        #[default]
        ReadOnly = 0 "ro",
        /// The cube answers nothing.
        Crash = 1 "crash",
    }
}
attribute! {
    /// The one who repairs the cube after a failure.
    Recovery {
        /// The administrator decides.
        #[default]
        Manual = 0 "manual",
        /// Floe, before the next mount.
        Offline = 1 "offline",
        /// Floe, while the other cubes are served.
        Online = 2 "online",
    }
}
attribute! {
    /// How much fsync waits for.
    FsyncMode {
        /// The file of the call.
        #[default]
        Strict = 0 "strict",
        /// Nothing.
        Off = 1 "off",
    }
}

attribute! {
    /// Whether a failure of the cube is recorded.
    State {
        /// None is.
        #[default]
        Sound = 0 "sound",
        /// The cube failed while it was used, and was not checked since.
        Failed = 1 "failed",
    }
}

/// How a cube is to behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Most blocks of the cube's lots; 0: no limit.
    pub limit_blocks: u64,
    /// How changes become durable.
    pub journal_mode: JournalMode,
    /// The reaction to damage.
    pub on_error: OnError,
    /// The one who repairs it.
    pub recovery: Recovery,
    /// How much fsync waits for.
    pub fsync_mode: FsyncMode,
}

impl Policies {
    /// Whether one of the policies that [`Policies::objection`] judges is another than before.
    pub fn is_new(&self, before: &Self) -> bool {
        (self.on_error, self.recovery, self.journal_mode)
            != (before.on_error, before.recovery, before.journal_mode)
    }

    /// Why no cube can behave like this; `has_journal`: it has a journal of its own. `None` if one can.
    pub const fn objection(&self, has_journal: bool) -> Option<&'static str> {
        if matches!(self.journal_mode, JournalMode::Data) && !has_journal {
            return Some(
                "the mode `data` logs content, so the cube needs a journal of its own (--journal-blocks)",
            );
        }
        match (self.on_error, self.recovery) {
            (OnError::Crash, _) if !has_journal => Some(
                "`crash` drops changes that are not durable, so the cube needs a journal of its own (--journal-blocks)",
            ),
            (OnError::Crash, Recovery::Online) => Some(
                "`crash` ends the journal of the cube until the next mount, so it cannot be repaired online",
            ),
            _ => None,
        }
    }
}

/// A sub-superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubSuperblock {
    /// Number of the cube: 1 to [`MOST_CUBES`].
    pub cube: u32,
    /// Inode of the cube's directory.
    pub top_inode: u32,
    /// How often it was written.
    pub epoch: u64,
    /// The path of the directory from the root, with a slash at its beginning, when the cube was made: 2 to
    /// [`MOST_PATH_BYTES`] bytes.
    pub path: Vec<u8>,
    /// Lots of the cube when this was written, at most [`MOST_LOTS`]. The records of lots decide.
    pub lots: Vec<u32>,
    /// Its journal; all zero: none of its own.
    pub journal: OwnJournal,
    /// How it is to behave.
    pub policies: Policies,
    /// Whether a failure is recorded.
    pub state: State,
    /// The cubes that fail and are checked together with it, because another system has put files of one into another: the
    /// smallest of their numbers (0: the root cube). `None`: it stands alone.
    pub coupled: Option<u32>,
}

/// The journal of a cube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnJournal {
    /// Inode of its file.
    pub inode: u32,
    /// Blocks of the log, its superblock included. The file has one more, which lists the orphans of the cube.
    pub blocks: u32,
    /// UUID in its superblock.
    pub uuid: [u8; 16],
}

/// Fewest blocks of a cube's journal.
pub const FEWEST_JOURNAL_BLOCKS: u32 = 64;

/// Name in `/.cubes` of the journal of a cube.
pub fn journal_name(cube: u32) -> Vec<u8> {
    format!("journal.{cube}").into_bytes()
}

/// Name in `/.cubes` of a further journal of the root cube.
pub fn further_journal_name(number: u32) -> Vec<u8> {
    format!("journal.0.{number}").into_bytes()
}

impl SubSuperblock {
    /// The logical blocks of `/.cubes/super` that hold the two copies of a cube's sub-superblock.
    pub const fn places(cube: u32) -> [u64; 2] {
        [cube as u64, SECOND + cube as u64]
    }

    /// The sub-superblock in a block. `None` if its checksum is wrong or if it cannot be one.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Option<Self> {
        let header = CubeHeader::decode(block.first_chunk()?);
        let is_ours = header.magic == MAGIC && header.version == VERSION;
        if !is_ours || header.checksum != checksum(block) {
            return None;
        }
        let (path_bytes, lots) = (usize::from(header.path_bytes), usize::from(header.lot_count));
        let is_possible = (1..=MOST_CUBES).contains(&header.cube)
            && (2..=MOST_PATH_BYTES).contains(&path_bytes)
            && lots <= MOST_LOTS;
        if !is_possible {
            return None;
        }
        let lots = block[LOTS_OFFSET..].as_chunks::<4>().0[..lots].iter();
        Some(Self {
            cube: header.cube,
            top_inode: header.top_inode,
            epoch: header.epoch,
            path: block[PATH_OFFSET..PATH_OFFSET + path_bytes].to_vec(),
            lots: lots.map(|lot| u32::from_le_bytes(*lot)).collect(),
            journal: OwnJournal {
                inode: header.journal_inode,
                blocks: header.journal_blocks,
                uuid: header.journal_uuid,
            },
            policies: Policies {
                limit_blocks: header.limit_blocks,
                journal_mode: JournalMode::of_number(header.journal_mode)?,
                on_error: OnError::of_number(header.on_error)?,
                recovery: Recovery::of_number(header.recovery)?,
                fsync_mode: FsyncMode::of_number(header.fsync_mode)?,
            },
            state: State::of_number(header.state)?,
            coupled: header.coupled.checked_sub(1),
        })
    }

    /// The block of this sub-superblock. A longer path and further lots are cut off.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let path = &self.path[..self.path.len().min(MOST_PATH_BYTES)];
        let lots = &self.lots[..self.lots.len().min(MOST_LOTS)];
        let header = CubeHeader {
            magic: MAGIC,
            version: VERSION,
            // Both were cut to lengths that fit.
            path_bytes: path.len() as u16,
            lot_count: lots.len() as u16,
            cube: self.cube,
            top_inode: self.top_inode,
            epoch: self.epoch,
            limit_blocks: self.policies.limit_blocks,
            journal_inode: self.journal.inode,
            journal_blocks: self.journal.blocks,
            journal_uuid: self.journal.uuid,
            journal_mode: self.policies.journal_mode as u8,
            on_error: self.policies.on_error as u8,
            recovery: self.policies.recovery as u8,
            fsync_mode: self.policies.fsync_mode as u8,
            state: self.state as u8,
            coupled: self.coupled.map_or(0, |least| least.saturating_add(1)),
            ..CubeHeader::decode(&[0; CubeHeader::SIZE])
        };
        if let Some(place) = block.first_chunk_mut() {
            header.encode_into(place);
        }
        block[PATH_OFFSET..PATH_OFFSET + path.len()].copy_from_slice(path);
        let places = block[LOTS_OFFSET..].as_chunks_mut::<4>().0;
        for (place, lot) in places.iter_mut().zip(lots) {
            *place = lot.to_le_bytes();
        }
        let sum = checksum(&block);
        block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_le_bytes());
        block
    }
}

fn checksum(block: &[u8; BLOCK_BYTES]) -> u32 {
    let mut bytes = *block;
    bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].fill(0);
    crc32c(u32::MAX, &bytes)
}

/// The copy that counts: of those that are valid and have the cube's number, the one that was written last.
pub fn newest(cube: u32, copies: impl IntoIterator<Item = SubSuperblock>) -> Option<SubSuperblock> {
    copies.into_iter().filter(|copy| copy.cube == cube).max_by_key(|copy| copy.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_super() -> impl Strategy<Value = SubSuperblock> {
        let path = proptest::collection::vec(any::<u8>(), 2..=MOST_PATH_BYTES);
        let lots = proptest::collection::vec(any::<u32>(), 0..=MOST_LOTS);
        let fixed = (1..=MOST_CUBES, any::<u32>(), any::<u64>(), any::<u64>());
        let journal = any::<(u32, u32, [u8; 16])>();
        let policies = (0usize..2, 0usize..2, 0usize..3, 0usize..2, 0usize..2);
        (path, lots, fixed, journal, policies).prop_map(|(path, lots, fixed, journal, policies)| {
            let (inode, blocks, uuid) = journal;
            let journal = OwnJournal { inode, blocks, uuid };
            let (cube, top_inode, epoch, limit_blocks) = fixed;
            let state = State::ALL[policies.4];
            let coupled = (inode % 3).checked_sub(1);
            let policies = Policies {
                limit_blocks,
                journal_mode: JournalMode::ALL[policies.0],
                on_error: OnError::ALL[policies.1],
                recovery: Recovery::ALL[policies.2],
                fsync_mode: FsyncMode::ALL[policies.3],
            };
            SubSuperblock { cube, top_inode, epoch, path, lots, journal, policies, state, coupled }
        })
    }

    proptest! {
        #[test]
        fn a_sub_superblock_survives(sub in any_super()) {
            prop_assert_eq!(SubSuperblock::decode(&sub.encode()), Some(sub));
        }

        #[test]
        fn no_flipped_bit_is_overlooked(sub in any_super(), at in 0..BLOCK_BYTES, bit in 0u8..8) {
            let mut block = sub.encode();
            block[at] ^= 1 << bit;
            prop_assert_eq!(SubSuperblock::decode(&block), None);
        }

        #[test]
        fn arbitrary_headers_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 128)) {
            let mut block = Box::new([0x5a; BLOCK_BYTES]);
            block[..128].copy_from_slice(&bytes);
            block[..6].copy_from_slice(&[b'F', b'c', b'u', b'b', 1, 0]);
            let sum = checksum(&block);
            block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_le_bytes());
            if let Some(sub) = SubSuperblock::decode(&block) {
                prop_assert!(sub.path.len() <= MOST_PATH_BYTES && sub.lots.len() <= MOST_LOTS);
            }
        }

        #[test]
        fn the_newest_copy_counts(sub in any_super(), newer in 1u64..9) {
            let older = SubSuperblock { epoch: 7, ..sub.clone() };
            let newer = SubSuperblock { epoch: 7 + newer, ..sub.clone() };
            let other = SubSuperblock { epoch: 99, cube: sub.cube % MOST_CUBES + 1, ..sub };
            let copies = [older, newer.clone(), other];
            prop_assert_eq!(newest(newer.cube, copies), Some(newer));
        }
    }

    #[test]
    fn crash_needs_a_journal_of_its_own_and_no_repair_online() {
        let crash = Policies { on_error: OnError::Crash, ..Policies::default() };
        assert!(crash.objection(false).is_some());
        assert_eq!(crash.objection(true), None);
        let online = Recovery::Online;
        assert!(Policies { recovery: online, ..crash }.objection(true).is_some());
        assert_eq!(Policies { recovery: online, ..Policies::default() }.objection(false), None);
    }

    #[test]
    fn names_of_values_are_their_own() {
        for mode in JournalMode::ALL {
            assert_eq!(JournalMode::of_name(mode.name()), Some(*mode));
        }
        assert_eq!(OnError::of_name("panic"), None);
    }
}
