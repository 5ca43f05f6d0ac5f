//! The identity of a native file system: 76 bytes of the superblock, and the seal among them.

use crate::crc::crc32c;
use crate::ext::superblock::{STATE_VALID, Superblock};
use crate::features::Incompat;

/// Byte of the superblock at which the identity begins. Linux and e2fsprogs take new fields from
/// byte 0x288 upwards, so these lie at the other end.
pub const OFFSET: usize = 0x3b0;
/// Its first word among those of the superblock that ext4 has reserved, which go on up to the checksum.
const FIRST_WORD: usize = (OFFSET - 0x284) / 4;
/// Byte of the superblock at which the seal lies, right before the checksum.
const SEAL_OFFSET: usize = OFFSET + 0x48;
/// `magic`: "Floe" in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Floe");
/// `version` of the format that this crate describes.
pub const VERSION: u16 = 1;

/// `flags`: when Floe last left the file system, reservation files held the free blocks of all regions.
pub const FLAG_RESERVED: u16 = 0x0001;
/// `flags`: another system has written since there are cubes, so names and blocks may lead from one cube into another without
/// being damage. Set by the mount that notices it, cleared by a repair that finds nothing of the kind.
pub const FLAG_COUPLED: u16 = 0x0002;

/// `flags`: sub-superblocks say which cubes are coupled, and nobody else has written since they do.
pub const FLAG_COUPLES_KNOWN: u16 = 0x0004;

/// `flags`: when Floe last used the file system, group descriptors of cubes were damaged, for which alone its state is not that of a
/// clean one.
pub const FLAG_LOST: u16 = 0x0008;

/// Name of the directory in the root that holds the file system's own files.
pub const HOME_NAME: &[u8] = b".cubes";
/// Name in it of the directory of the root cube, which holds the reservation files.
pub const ROOT_CUBE_NAME: &[u8] = b"c0";

layout! {
    /// The identity of a native file system (bytes 0x3b0 to 0x3fc of the superblock). Backups of the
    /// superblock have it, too, with a seal of 0.
    pub struct Identity[76] little {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`VERSION`].
        0x04 version: u16,
        /// `FLAG_*` bits.
        0x06 flags: u16,
        /// Blocks of the metadata region of a whole lot; a shorter lot has its share of them.
        0x08 region_blocks: u32,
        /// Inode of the directory `/.cubes`.
        0x0c home_inode: u32,
        /// Inode of `/.cubes/super`, which lists the cubes; 0 if there is none.
        0x10 super_inode: u32,
        /// How often the file system was sealed; mkfs seals it the first time.
        0x14 epoch: u64,
        /// While Floe writes, [`Identity::compute_stamp`] of the superblock; 0 in images of older versions.
        0x1c stamp: u32,
        /// Inode of `/.cubes/fence`; 0 if there is none.
        0x20 fence_inode: u32,
        /// Reserved; 0.
        0x24 reserved: [u32; 9],
        /// `Identity::compute_seal` of the primary superblock. Any other value: another program,
        /// or a mount that did not end, has written since.
        0x48 seal: u32,
    }
}

impl Identity {
    /// The identity in a superblock; `None` in a file system that is not native, or of a version
    /// that is not known.
    pub fn of(superblock: &Superblock) -> Option<Self> {
        // Asked for at each change of a map, so not by encoding all of the superblock.
        let words = superblock.reserved.get(FIRST_WORD..)?;
        let mut bytes = [0; Self::SIZE];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let own = Self::decode(&bytes);
        (own.magic == MAGIC && own.version == VERSION).then_some(own)
    }

    /// Writes the identity into a superblock. The superblock's checksum is not computed.
    pub fn put(&self, superblock: &mut Superblock) {
        let mut bytes = [0; Superblock::SIZE];
        superblock.encode_into(&mut bytes);
        if let Some(place) = bytes[OFFSET..].first_chunk_mut() {
            self.encode_into(place);
        }
        *superblock = Superblock::decode(&bytes);
    }

    /// Writes the identity with the seal of the superblock as it is then.
    pub fn put_sealed(&self, superblock: &mut Superblock) {
        self.put(superblock);
        let seal = Self::compute_seal(superblock);
        Self { seal, ..self.clone() }.put(superblock);
    }

    /// crc32c of a superblock whose seal and checksum count as zero.
    pub(crate) fn compute_seal(superblock: &Superblock) -> u32 {
        let mut bytes = [0; Superblock::SIZE];
        superblock.encode_into(&mut bytes);
        bytes[SEAL_OFFSET..].fill(0);
        crc32c(u32::MAX, &bytes)
    }

    /// crc32c of the fields that every other system changes when it mounts or checks a file system: mounts since the last check,
    /// and the times of the last mount and check.
    pub fn compute_stamp(superblock: &Superblock) -> u32 {
        let mut bytes = [0; 12];
        let (mounts, rest) = bytes.split_at_mut(4);
        mounts[..2].copy_from_slice(&superblock.mnt_count.to_le_bytes());
        rest[..4].copy_from_slice(&superblock.mtime.to_le_bytes());
        rest[4..].copy_from_slice(&superblock.lastcheck.to_le_bytes());
        crc32c(u32::MAX, &bytes).max(1)
    }

    /// Whether names and blocks may lead from one cube into another because a system that does not know cubes put them there:
    /// it has written since Floe sealed the file system or began to use it, or some time before.
    pub fn is_coupled(superblock: &Superblock) -> bool {
        let flags = Self::of(superblock).map_or(0, |own| own.flags);
        flags & FLAG_COUPLED != 0 || Self::is_foreign(superblock)
    }

    /// Whether sub-superblocks tell which cubes are coupled.
    pub fn knows_couples(superblock: &Superblock) -> bool {
        let flags = Self::of(superblock).map_or(0, |own| own.flags);
        flags & FLAG_COUPLES_KNOWN != 0 && !Self::is_foreign(superblock)
    }

    /// Whether another system has written since Floe sealed the file system or began to use it.
    fn is_foreign(superblock: &Superblock) -> bool {
        let Some(own) = Self::of(superblock) else { return false };
        match own.seal {
            // In use by Floe, or left by a crash.
            0 => own.stamp != 0 && own.stamp != Self::compute_stamp(superblock),
            seal => {
                seal != Self::compute_seal(superblock) && seal != Self::seal_at_rest(superblock)
            }
        }
    }

    /// The seal of a superblock that Floe has begun to use, but for the bits that say so.
    fn seal_at_rest(superblock: &Superblock) -> u32 {
        let marks = Incompat::RECOVER.bits() | super::LOCK;
        let feature_incompat = superblock.feature_incompat & !marks;
        Self::compute_seal(&Superblock { feature_incompat, ..superblock.clone() })
    }

    /// Says that sub-superblocks tell which cubes are coupled.
    pub fn put_couples_known(superblock: &mut Superblock) {
        let Some(own) = Self::of(superblock) else { return };
        Self { flags: own.flags | FLAG_COUPLES_KNOWN, ..own }.put(superblock);
    }

    /// Says that Floe uses the file system from now on; `is_coupled` as [`Identity::is_coupled`] had it before. From now on
    /// nothing tells which cubes are coupled.
    pub fn put_in_use(superblock: &mut Superblock, is_coupled: bool) {
        let Some(own) = Self::of(superblock) else { return };
        let coupled = if is_coupled { FLAG_COUPLED } else { 0 };
        let flags = own.flags & !(FLAG_COUPLED | FLAG_COUPLES_KNOWN) | coupled;
        let stamp = Self::compute_stamp(superblock);
        Self { seal: 0, flags, stamp, ..own }.put(superblock);
    }

    /// Says that group descriptors of cubes are damaged: the file system does not pass for a clean one any more.
    pub fn put_lost(superblock: &mut Superblock) {
        let Some(own) = Self::of(superblock) else { return };
        if superblock.state & STATE_VALID != 0 {
            Self { flags: own.flags | FLAG_LOST, ..own }.put(superblock);
        }
        superblock.state &= !STATE_VALID;
    }

    /// Says that they were mended: it is as clean as it was before.
    pub fn put_mended(superblock: &mut Superblock) {
        if Self::is_clean(superblock) {
            superblock.state |= STATE_VALID;
        }
        if let Some(own) = Self::of(superblock).filter(|own| own.flags & FLAG_LOST != 0) {
            Self { flags: own.flags & !FLAG_LOST, ..own }.put(superblock);
        }
    }

    /// Whether a file system is clean, damaged descriptors of cubes aside.
    pub fn is_clean(superblock: &Superblock) -> bool {
        let flags = Self::of(superblock).map_or(0, |own| own.flags);
        superblock.state & STATE_VALID != 0
            || flags & FLAG_LOST != 0 && !Self::is_foreign(superblock)
    }

    /// Whether the primary superblock is as it was when it was sealed: nobody has written since.
    pub fn is_sealed(superblock: &Superblock) -> bool {
        Self::of(superblock).is_some_and(|own| own.seal == Self::compute_seal(superblock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> Identity {
        let empty = Identity::decode(&[0; 76]);
        Identity { magic: MAGIC, version: VERSION, region_blocks: 2048, epoch: 3, ..empty }
    }

    proptest! {
        #[test]
        fn every_change_of_the_superblock_breaks_the_seal(at in 0usize..0x3fc, bit in 0u8..8) {
            let mut superblock = Superblock::decode(&[7; 1024]);
            identity().put_sealed(&mut superblock);
            prop_assert!(Identity::is_sealed(&superblock));
            let mut bytes = [0; 1024];
            superblock.encode_with_checksum(&mut bytes);
            bytes[at] ^= 1 << bit;
            prop_assert!(!Identity::is_sealed(&Superblock::decode(&bytes)));
        }

        #[test]
        fn the_identity_leaves_all_other_fields_as_they_are(seed: u8) {
            let before = Superblock::decode(&[seed; 1024]);
            let mut after = before.clone();
            identity().put(&mut after);
            prop_assert_eq!(Identity::of(&after), Some(identity()));
            let mut bytes = [0; 1024];
            after.encode_into(&mut bytes);
            prop_assert!(bytes[..OFFSET].iter().all(|byte| *byte == seed));
            prop_assert!(bytes[0x3fc..].iter().all(|byte| *byte == seed));
        }
    }

    #[test]
    fn other_writers_are_noticed_whether_it_is_sealed_or_in_use() {
        let mut superblock = Superblock::decode(&[0; 1024]);
        identity().put_sealed(&mut superblock);
        assert!(!Identity::is_coupled(&superblock));
        superblock.mnt_count += 1;
        assert!(Identity::is_coupled(&superblock));
        let stamp = Identity::compute_stamp(&superblock);
        let own = Identity { stamp, ..identity() };
        own.put(&mut superblock);
        assert!(!Identity::is_coupled(&superblock));
        for change in [
            (|sb: &mut Superblock| sb.mnt_count += 1) as fn(&mut Superblock),
            |sb| sb.mtime += 1,
            |sb| sb.lastcheck += 1,
        ] {
            let mut other = superblock.clone();
            change(&mut other);
            assert!(Identity::is_coupled(&other));
        }
        Identity { flags: FLAG_COUPLED, ..own }.put(&mut superblock);
        assert!(Identity::is_coupled(&superblock));
    }

    #[test]
    fn a_file_system_is_as_clean_as_before_once_descriptors_are_mended() {
        for state in [0, STATE_VALID] {
            let mut superblock = Superblock::decode(&[0; 1024]);
            superblock.state = state;
            identity().put(&mut superblock);
            Identity::put_in_use(&mut superblock, false);
            for _ in 0..2 {
                Identity::put_lost(&mut superblock);
                assert_eq!(superblock.state & STATE_VALID, 0);
                assert_eq!(Identity::is_clean(&superblock), state != 0);
            }
            let mut checked = superblock.clone();
            checked.lastcheck += 1;
            assert!(!Identity::is_clean(&checked), "somebody else has judged it since");
            Identity::put_mended(&mut superblock);
            assert_eq!(superblock.state, state);
            assert_eq!(Identity::of(&superblock).unwrap().flags & FLAG_LOST, 0);
        }
    }

    #[test]
    fn a_superblock_without_the_magic_is_not_native() {
        assert_eq!(Identity::of(&Superblock::decode(&[0; 1024])), None);
        let mut superblock = Superblock::decode(&[0; 1024]);
        Identity { version: VERSION + 1, ..identity() }.put_sealed(&mut superblock);
        assert_eq!(Identity::of(&superblock), None);
        assert!(!Identity::is_sealed(&superblock));
    }
}
