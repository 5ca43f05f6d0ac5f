//! Writing fast commits.

use super::{
    ADD_RANGE, CREAT, DEL_RANGE, FcDentry, FcTag, HEAD, INODE, LINK, PAD, TAG_SIZE, TAIL, UNLINK,
};
use crate::crc::crc32c;

/// Bytes of the value of a tail.
const TAIL_VALUE: usize = 8;

/// A tag does not fit a block, or its value cannot be stored: an inode shorter than 128 bytes, a name that is empty or
/// longer than 255 bytes, an extent with numbers beyond those of ext4. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tag or its value does not fit into a fast commit")]
pub struct DoesNotFit;

/// Writes the blocks of the fast-commit area from its start on: tags, padded so that none crosses a block, each fast
/// commit ended by a tail that fills its last block.
#[derive(Clone, Debug)]
pub struct FcWriter {
    bytes: Vec<u8>,
    block_size: usize,
    /// Running checksum of all tags since the last tail.
    crc: u32,
}

impl FcWriter {
    /// An empty area of blocks of `block_size` bytes (1,024 or more).
    pub const fn new(block_size: u32) -> Self {
        Self { bytes: Vec::new(), block_size: block_size as usize, crc: 0 }
    }

    /// Adds a tag. The first of an area has to be [`FcTag::Head`]; tails are written by [`FcWriter::end`] alone.
    ///
    /// # Errors
    /// [`DoesNotFit`], also for padding and tails.
    pub fn push(&mut self, tag: &FcTag<'_>) -> Result<(), DoesNotFit> {
        let (kind, value) = encode(tag).filter(|_| is_sound(tag)).ok_or(DoesNotFit)?;
        if value.len() + 2 * TAG_SIZE > self.block_size {
            return Err(DoesNotFit);
        }
        let len = u16::try_from(value.len()).map_err(|_| DoesNotFit)?;
        self.make_room(TAG_SIZE + value.len());
        self.put(kind, len, &value);
        Ok(())
    }

    /// Ends a fast commit of transaction `tid`. The next one begins with the next block.
    pub fn end(&mut self, tid: u32) {
        self.make_room(TAG_SIZE + TAIL_VALUE);
        let room = self.room();
        self.put(TAIL, (room - TAG_SIZE) as u16, &tid.to_le_bytes());
        let crc = std::mem::take(&mut self.crc);
        self.bytes.extend(crc.to_le_bytes());
        let end = self.bytes.len().next_multiple_of(self.block_size);
        self.bytes.resize(end, 0);
    }

    /// The blocks written, the last one filled up with zeroes if no tail ended it.
    pub fn into_bytes(mut self) -> Vec<u8> {
        let end = self.bytes.len().next_multiple_of(self.block_size);
        self.bytes.resize(end, 0);
        self.bytes
    }

    /// Bytes left in the block being written.
    fn room(&self) -> usize {
        self.block_size - self.bytes.len() % self.block_size
    }

    /// Pads the block if `bytes` and the padding behind them no longer fit in it. Every block keeps
    /// room for a padding tag at its end.
    fn make_room(&mut self, bytes: usize) {
        let room = self.room();
        if bytes + TAG_SIZE > room {
            // Below the size of a block, which is at most 65,536.
            self.put(PAD, (room - TAG_SIZE) as u16, &vec![0; room - TAG_SIZE]);
        }
    }

    fn put(&mut self, kind: u16, len: u16, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(value);
        self.crc = crc32c(self.crc, &self.bytes[start..]);
    }
}

/// Whether a reader would accept the tag.
fn is_sound(tag: &FcTag<'_>) -> bool {
    match tag {
        FcTag::Creat(dentry) | FcTag::Link(dentry) | FcTag::Unlink(dentry) => {
            (1..=255).contains(&dentry.name.len())
        }
        FcTag::Inode { raw, .. } => raw.len() >= 128,
        FcTag::Pad | FcTag::Tail { .. } => false,
        FcTag::AddRange { .. } | FcTag::DelRange { .. } | FcTag::Head { .. } => true,
    }
}

/// Kind and value of a tag; `None` for an extent that cannot be stored.
fn encode(tag: &FcTag<'_>) -> Option<(u16, Vec<u8>)> {
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let dentry = |it: &FcDentry<'_>| [&words(&[it.parent.0, it.inode.0])[..], it.name].concat();
    Some(match *tag {
        FcTag::AddRange { inode, extent } => {
            let mut raw = [0; 12];
            extent.to_raw()?.encode_into(&mut raw);
            (ADD_RANGE, [&words(&[inode.0])[..], &raw].concat())
        }
        FcTag::DelRange { inode, start, len_blocks } => {
            // Logical blocks of files have 32 bits.
            let start = u32::try_from(start.0).unwrap_or(u32::MAX);
            (DEL_RANGE, words(&[inode.0, start, len_blocks]))
        }
        FcTag::Creat(it) => (CREAT, dentry(&it)),
        FcTag::Link(it) => (LINK, dentry(&it)),
        FcTag::Unlink(it) => (UNLINK, dentry(&it)),
        FcTag::Inode { inode, raw } => (INODE, [&words(&[inode.0])[..], raw].concat()),
        FcTag::Pad => (PAD, Vec::new()),
        FcTag::Tail { tid, crc } => (TAIL, words(&[tid, crc])),
        FcTag::Head { features, tid } => (HEAD, words(&[features, tid])),
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::FcRecords;
    use super::*;
    use crate::ext::extent::Extent;
    use crate::{BlockNr, BlockRun, InodeNr, LogicalBlock};

    #[derive(Clone, Debug)]
    enum Made {
        Range(u32, u32),
        Gone(u32, u32),
        Name(Vec<u8>),
        Inode(Vec<u8>),
        End(u32),
    }

    fn tag(made: &Made) -> Option<FcTag<'_>> {
        let inode = InodeNr(12);
        Some(match made {
            Made::Range(logical, block) => FcTag::AddRange {
                inode,
                extent: Extent {
                    logical: LogicalBlock(u64::from(*logical)),
                    run: BlockRun::new(BlockNr(u64::from(*block)), 7),
                    unwritten: true,
                },
            },
            Made::Gone(start, len_blocks) => {
                let start = LogicalBlock(u64::from(*start));
                FcTag::DelRange { inode, start, len_blocks: *len_blocks }
            }
            Made::Name(name) => FcTag::Creat(FcDentry { parent: InodeNr(2), inode, name }),
            Made::Inode(raw) => FcTag::Inode { inode, raw },
            Made::End(_) => return None,
        })
    }

    fn made() -> impl Strategy<Value = Vec<Made>> {
        let one = prop_oneof![
            any::<(u32, u32)>().prop_map(|(logical, block)| Made::Range(logical, block)),
            any::<(u32, u32)>().prop_map(|(start, len)| Made::Gone(start, len)),
            vec(any::<u8>(), 1..256).prop_map(Made::Name),
            vec(any::<u8>(), 128..257).prop_map(Made::Inode),
            any::<u32>().prop_map(Made::End),
        ];
        vec(one, 0..60)
    }

    proptest! {
        /// Tags come back in order, no block is broken, and the checksum of each tail is the
        /// running one.
        #[test]
        fn what_is_written_is_read(made in made()) {
            let mut writer = FcWriter::new(1024);
            writer.push(&FcTag::Head { features: 0, tid: 3 }).unwrap();
            for one in &made {
                match (tag(one), one) {
                    (Some(tag), _) => writer.push(&tag).unwrap(),
                    (None, Made::End(tid)) => writer.end(*tid),
                    (None, _) => {}
                }
            }
            let bytes = writer.into_bytes();
            let mut expected = made.iter();
            let mut crc = 0;
            for (at, block) in bytes.chunks(1024).enumerate() {
                let mut records = FcRecords::new(block, 256);
                for record in records.by_ref() {
                    crc = record.checksum(crc);
                    match record.tag {
                        FcTag::Pad => {}
                        FcTag::Head { tid, .. } => prop_assert_eq!((at, tid), (0, 3)),
                        FcTag::Tail { tid, crc: stored } => {
                            prop_assert_eq!(stored, std::mem::take(&mut crc));
                            prop_assert!(matches!(expected.next(), Some(&Made::End(it)) if it == tid));
                        }
                        other => prop_assert_eq!(expected.next().and_then(tag), Some(other)),
                    }
                }
                // Behind the last tail are zeroes, which are no tag.
                prop_assert!(!records.is_broken() || at + 1 == bytes.len() / 1024);
            }
            prop_assert!(expected.next().is_none());
        }
    }

    #[test]
    fn what_no_reader_would_take_is_refused() {
        let mut writer = FcWriter::new(1024);
        let name = |name| FcTag::Link(FcDentry { parent: InodeNr(2), inode: InodeNr(3), name });
        let long = [b'x'; 256];
        for tag in [
            name(&[]),
            name(&long),
            FcTag::Inode { inode: InodeNr(3), raw: &[0; 127] },
            FcTag::Inode { inode: InodeNr(3), raw: &[0; 1024] },
            FcTag::Pad,
        ] {
            assert!(writer.push(&tag).is_err());
        }
        assert!(writer.into_bytes().is_empty());
    }
}
