//! Attribute blocks are read by shards. The merge needs only the uses of each, and reads those that are no plain case.

use std::sync::Mutex;

use floe_format::{BlockNr, InodeNr};
use floe_testkit::volume::Volume;

use super::*;

/// A device that notes what is read.
struct Noted<'a> {
    image: &'a Image,
    reads: Mutex<Vec<(u64, u64)>>,
}

impl ReadBlocks for Noted<'_> {
    fn size_bytes(&self) -> u64 {
        self.image.size_bytes()
    }
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.lock().unwrap().push((offset_bytes, into.len() as u64));
        self.image.read_at(offset_bytes, into)
    }
}

impl Noted<'_> {
    /// How many of these blocks of 1 KiB `work` reads.
    fn read_of(&self, blocks: &[BlockNr], work: impl FnOnce()) -> usize {
        self.reads.lock().unwrap().clear();
        work();
        let reads = self.reads.lock().unwrap();
        let is_read = |block: &&BlockNr| {
            let at = block.0 * 1024;
            reads.iter().any(|&(start, len)| start <= at && at < start + len)
        };
        blocks.iter().filter(is_read).count()
    }
}

/// Inodes of all groups with an attribute block each, and these blocks.
fn with_attributes() -> Option<(Image, Vec<InodeNr>, Vec<BlockNr>)> {
    let image = many_directories()?;
    let volume = Volume::open(&image).unwrap();
    let used = volume.used_inodes().unwrap();
    let chosen: Vec<InodeNr> = used.into_iter().filter(|inode| inode.0 > 11).step_by(40).collect();
    // Too long for the room in an inode.
    let value = "a".repeat(300);
    let set = |inode: &InodeNr| format!("ea_set <{}> user.floe {value}{}", inode.0, inode.0);
    build::debugfs(&image, &chosen.iter().map(set).collect::<Vec<_>>().join("\n")).unwrap();
    let blocks = chosen.iter().map(|inode| block_of(&image, *inode)).collect();
    Some((image, chosen, blocks))
}

fn block_of(image: &Image, inode: InodeNr) -> BlockNr {
    let bytes = Volume::open(image).unwrap().inode_bytes(inode).unwrap();
    BlockNr(u32::from_le_bytes(bytes[0x68..0x6c].try_into().unwrap()).into())
}

#[test]
fn shards_read_attribute_blocks_and_the_merge_does_not() {
    let Some((image, inodes, blocks)) = with_attributes() else { return };
    assert!(inodes.len() > 100 && blocks.iter().all(|block| block.0 != 0));
    let noted = Noted { image: &image, reads: Mutex::default() };
    for accounting in ACCOUNTINGS {
        let subject = Subject { device: &noted, accounting, name: "attributes".to_owned() };
        let mut expected = String::new();
        let all = noted.read_of(&blocks, || expected = subject.verdict());
        assert_eq!(all, blocks.len());
        let mut parts = Memory(Vec::new());
        let of_shards =
            noted.read_of(&blocks, || parts = subject.parts(5, &mut Rng::new(12)).unwrap());
        assert_eq!(of_shards, blocks.len());
        let of_merge =
            noted.read_of(&blocks, || assert_eq!(subject.merged(&parts, 1).unwrap(), expected));
        // By sums, it reads nothing nearby either.
        assert!(accounting == Accounting::Exact || of_merge == 0, "{of_merge} blocks");
    }
}

#[test]
fn attribute_blocks_that_inodes_of_several_shards_use() {
    let Some((image, inodes, blocks)) = with_attributes() else { return };
    let last = inodes.len() - 1;
    // A user more than the block says, in another shard; a user less; two users of a damaged block; an unknown magic.
    let commands = [
        format!("sif <{}> file_acl {}", inodes[last].0, blocks[0].0),
        format!("sif <{}> file_acl 0", inodes[last / 2].0),
        format!("sif <{}> file_acl {}", inodes[last - 1].0, blocks[1].0),
    ];
    build::debugfs(&image, &commands.join("\n")).unwrap();
    for (block, at) in [(blocks[1], 40), (blocks[last / 3], 0), (blocks[last / 4], 16)] {
        image.write(block.0 * 1024 + at, &[0x5a; 4]).unwrap();
    }
    let mut rng = Rng::new(13);
    for accounting in ACCOUNTINGS {
        let subject = Subject { device: &image, accounting, name: "attributes".to_owned() };
        let expected = subject.verdict();
        for finding in ["XattrBlockRefcountWrong", "XattrBlockMagicBad", "XattrBlockChecksumBad"] {
            assert!(expected.contains(finding), "{finding}: {expected}");
        }
        COUNTS.into_iter().for_each(|count| subject.in_shards(count, &mut rng, &expected));
    }
}
