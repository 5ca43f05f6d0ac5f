//! The backpointer of an inode: which directory names it, and by which name.
//!
//! It lies in bytes 160 to 176 of the inode, behind the fields that ext4 knows and before the attributes
//! (`i_extra_isize` is 48). Linux gives inodes that it makes zeroes there and keeps the bytes of others; so a backpointer is
//! a hint, which the directory's own entry proves.

use crate::InodeNr;
use crate::crc::crc32c_of_few;
use crate::ext::inode::OwnedInode;
use crate::layout::le;

/// Byte of the inode at which the backpointer begins.
pub const OFFSET: usize = 160;
/// Byte of the inode at which `i_extra_isize` lies.
const I_EXTRA_ISIZE: usize = 128;
/// `i_extra_isize` from which on an inode has room for it.
pub const EXTRA_ISIZE: u16 = (OFFSET + Backpointer::SIZE - 128) as u16;
/// `magic`: "Fb" in the order of the bytes.
pub const MAGIC: u16 = u16::from_le_bytes(*b"Fb");
/// Flag: the inode has or had further names.
pub const FLAG_SEVERAL: u16 = 1;

layout! {
    /// A name of an inode.
    pub struct Backpointer[16] little {
        /// [`MAGIC`]; anything else: nothing is known.
        0x0 magic: u16,
        /// [`FLAG_SEVERAL`].
        0x2 flags: u16,
        /// Inode of the directory.
        0x4 parent: u32,
        /// [`name_hash`] of the name.
        0x8 name_hash: u32,
        /// Reserved; 0.
        0xc reserved: u32,
    }
}

/// The hash of a name: crc32c of its bytes, start value 2^32 - 1, not inverted.
pub fn name_hash(name: &[u8]) -> u32 {
    crc32c_of_few(u32::MAX, name)
}

impl Backpointer {
    /// That of an inode with this name in a directory.
    pub fn new(parent: InodeNr, name: &[u8]) -> Self {
        let (parent, name_hash) = (parent.0, name_hash(name));
        Self { magic: MAGIC, flags: 0, parent, name_hash, reserved: 0 }
    }

    /// The backpointer in the bytes of an inode; `None` if it has no room for one or says nothing.
    #[inline]
    pub fn of(raw: &[u8]) -> Option<Self> {
        // Lengths that are known while compiling, because each inode of a check comes by here.
        let raw: &[u8; OFFSET + Self::SIZE] = raw.first_chunk()?;
        let has_room = le::<u16, I_EXTRA_ISIZE, _>(raw) >= EXTRA_ISIZE;
        let own = Self::decode(raw.last_chunk()?);
        (has_room && own.magic == MAGIC && own.parent != 0).then_some(own)
    }

    /// Stores a backpointer in the bytes of an inode with so many extra bytes; `None`: nothing is known. An inode without room
    /// for one stays as it is.
    pub fn store(own: Option<&Self>, raw: &mut [u8], extra_isize: u16) {
        let place = raw.get_mut(OFFSET..).and_then(|rest| rest.first_chunk_mut());
        let Some(place) = place.filter(|_| extra_isize >= EXTRA_ISIZE) else { return };
        match own {
            Some(own) => own.encode_into(place),
            None => place.fill(0),
        }
    }

    /// Whether it is that of a name, in whatever directory.
    pub fn is_of_name(&self, name: &[u8]) -> bool {
        self.name_hash == name_hash(name)
    }

    /// Whether it is that of a name in a directory.
    pub fn fits(&self, parent: InodeNr, name: &[u8]) -> bool {
        self.parent == parent.0 && self.name_hash == name_hash(name)
    }
}

impl OwnedInode {
    /// The backpointer; `None` if nothing is known.
    pub fn backpointer(&self) -> Option<Backpointer> {
        let has_room = self.extra.extra_isize >= EXTRA_ISIZE;
        let own = Backpointer::decode(self.raw.get(OFFSET..)?.first_chunk()?);
        (has_room && own.magic == MAGIC && own.parent != 0).then_some(own)
    }

    /// Stores a backpointer; `None`: nothing is known. An inode without room for one stays as it is.
    pub fn set_backpointer(&mut self, backpointer: Option<&Backpointer>) {
        Backpointer::store(backpointer, &mut self.raw, self.extra.extra_isize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::Seed;
    use crate::ext::inode::Inode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_backpointer_survives(parent in 1u32.., name in proptest::collection::vec(any::<u8>(), 1..256)) {
            let mut inode = OwnedInode::new(InodeNr(12), 256, 48).unwrap();
            let own = Backpointer::new(InodeNr(parent), &name);
            inode.set_backpointer(Some(&own));
            let raw = inode.seal(Some(Seed(5))).to_vec();
            prop_assert!(own.fits(InodeNr(parent), &name));
            prop_assert_eq!(Backpointer::of(&raw), Some(own));
            prop_assert!(Inode::decode(&raw).unwrap().checksum_ok(Seed(5), InodeNr(12)));
            // It lies before the attributes.
            prop_assert!(inode.attributes().iter().all(|byte| *byte == 0));
            inode.set_backpointer(None);
            prop_assert_eq!(Backpointer::of(inode.seal(None)), None);
        }

        #[test]
        fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Backpointer::of(&raw);
        }
    }

    #[test]
    fn inodes_without_room_stay_as_they_are() {
        for (size, extra) in [(128, 0), (256, 32), (256, 44)] {
            let mut inode = OwnedInode::new(InodeNr(12), size, extra).unwrap();
            let before = inode.seal(None).to_vec();
            inode.set_backpointer(Some(&Backpointer::new(InodeNr::ROOT, b"name")));
            assert_eq!(inode.seal(None), before);
            assert_eq!(inode.backpointer(), None);
        }
    }
}
