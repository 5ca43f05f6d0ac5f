//! The identity of a native file system: 76 bytes of the superblock, and the seal among them.

use crate::crc::crc32c;
use crate::ext::superblock::Superblock;

/// Byte of the superblock at which the identity begins. Linux and e2fsprogs take new fields from
/// byte 0x288 upwards, so these lie at the other end.
pub const OFFSET: usize = 0x3b0;
/// Byte of the superblock at which the seal lies, right before the checksum.
const SEAL_OFFSET: usize = OFFSET + 0x48;
/// `magic`: "Floe" in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Floe");
/// `version` of the format that this crate describes.
pub const VERSION: u16 = 1;

/// `flags`: when Floe last left the file system, reservation files held the free blocks of all regions.
pub const FLAG_RESERVED: u16 = 0x0001;

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
        /// Reserved; 0.
        0x1c reserved: [u32; 11],
        /// [`Identity::compute_seal`] of the primary superblock. Any other value: another program,
        /// or a mount that did not end, has written since.
        0x48 seal: u32,
    }
}

impl Identity {
    /// The identity in a superblock; `None` in a file system that is not native, or of a version
    /// that is not known.
    pub fn of(superblock: &Superblock) -> Option<Self> {
        let mut bytes = [0; Superblock::SIZE];
        superblock.encode_into(&mut bytes);
        let own = Self::decode(bytes[OFFSET..].first_chunk()?);
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
    fn a_superblock_without_the_magic_is_not_native() {
        assert_eq!(Identity::of(&Superblock::decode(&[0; 1024])), None);
        let mut superblock = Superblock::decode(&[0; 1024]);
        Identity { version: VERSION + 1, ..identity() }.put_sealed(&mut superblock);
        assert_eq!(Identity::of(&superblock), None);
        assert!(!Identity::is_sealed(&superblock));
    }
}
