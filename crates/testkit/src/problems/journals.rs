//! The internal journal, and multiple mount protection.

use crate::Profile;
use crate::recipe::{Edit, Recipe, inode, journal_superblock, mmp, superblock};
use floe_format::ext::jbd2::JournalSuperblock;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{InodeNr, LogicalBlock};

use super::Case;
use super::edits::{HAS_JOURNAL, RECOVER, needs_recovery};

fn case(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module. Journal fields are big-endian.
pub(super) fn cases() -> Vec<Case> {
    [superblocks(), contents(), mmps()].into_iter().flatten().collect()
}

fn superblocks() -> Vec<Case> {
    use Profile::*;
    let put = |at, value: u32| journal_superblock().put(at, value.to_be_bytes());
    vec![
        case("journal inode", Ext4K1, inode("<8>").mode(0), &["journal-inode-invalid"]),
        case("journal block size", Ext4K1, put(0x0c, 2048), &["journal-superblock-corrupt"]),
        case(
            "journal unused",
            Ext4K1,
            superblock(|sb| sb.feature_compat &= !HAS_JOURNAL),
            &["journal-present-without-feature"],
        )
        .forgotten(),
        case(
            "recovery of nothing",
            NoJournal,
            superblock(|sb| sb.feature_incompat |= RECOVER),
            &["needs-recovery-without-journal"],
        ),
        case("journal data", Ext4K1, put(0x1c, 1), &["journal-has-data-without-needs-recovery"])
            .forgotten(),
        case("journal ro feature", Ext4K1, put(0x2c, 1), &["journal-unknown-rocompat-feature"]),
        case("journal feature", Ext4K1, put(0x28, 1 << 24), &["journal-unknown-incompat-feature"]),
        case("journal version", Ext4K1, put(0x04, 9), &["journal-version-unknown"]),
        Case::from(
            Recipe::new("journal leftovers")
                .edit(put(0x04, 3))
                .edit(put(0x40, 1))
                .expect(&["journal-stale-v2-fields"]),
        )
        .forgotten(),
        case(
            "journal copy",
            Ext4K1,
            superblock(|sb| sb.jnl_blocks[5] ^= 1),
            &["journal-inode-backup-stale"],
        ),
        case("journal error", Ext4K1, put(0x20, 5), &["journal-error-recorded"]).forgotten(),
    ]
}

fn contents() -> Vec<Case> {
    let put = |at, value: u32| journal_superblock().put(at, value.to_be_bytes());
    let pending =
        |name: &str, start| Recipe::new(name).edit(needs_recovery()).edit(put(0x1c, start));
    vec![
        pending("recovery", 1).expect(&["recovery-pending"]).into(),
        Case::from(pending("log bounds", 0x00ff_ffff).expect(&["journal-transaction-corrupt"]))
            .recovered(),
        Case::from(
            Recipe::new("fast commits")
                .on(Profile::FastCommit)
                .edit(needs_recovery())
                .edit(unknown_fast_commit())
                .expect(&["fast-commit-corrupt"]),
        )
        .recovered(),
        Recipe::new("journal with a name")
            .on(Profile::Ext3)
            .edit(journal_as("/empty"))
            .expect(&["journal-file-visible"])
            .into(),
    ]
}

/// An empty log, and a fast commit that requires unknown features.
fn unknown_fast_commit() -> Edit {
    Edit::new(|volume| {
        let map = volume.map(InodeNr::JOURNAL)?;
        let block_at = |at: u32| map.data[&LogicalBlock(u64::from(at))];
        let mut bytes = volume.block(block_at(0))?;
        let raw = bytes.first_chunk_mut().expect("1 KiB at the least");
        let mut superblock = JournalSuperblock::decode(raw);
        superblock.feature_incompat |= 0x20;
        superblock.start = 1;
        superblock.encode_into(raw);
        volume.put_block(block_at(0), &bytes)?;
        volume.fix_journal_superblock(block_at(0))?;
        let mut head = vec![9, 0, 8, 0];
        head.extend(u32::MAX.to_le_bytes());
        head.extend(superblock.sequence.to_le_bytes());
        volume.put_block(block_at(superblock.maxlen - superblock.fast_commit_blocks() + 1), &head)
    })
}

/// Moves the journal to the inode of a file, as before inode 8 was reserved for it.
fn journal_as(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup(path)?;
        let bytes = volume.inode_bytes(InodeNr::JOURNAL)?;
        volume.put_inode(inode, &bytes)?;
        volume.put_inode(InodeNr::JOURNAL, &vec![0; bytes.len()])?;
        let mut bytes = [0; 1024];
        volume.image.read(OFFSET_BYTES, &mut bytes)?;
        let mut superblock = Superblock::decode(&bytes);
        superblock.journal_inum = inode.0;
        superblock.encode_into(&mut bytes);
        volume.image.write(OFFSET_BYTES, &bytes)
    })
}

fn mmps() -> Vec<Case> {
    use Profile::Mmp;
    vec![
        case(
            "mmp place",
            Mmp,
            superblock(|sb| sb.mmp_block = 1 << 40),
            &["mmp-block-out-of-range"],
        ),
        case("mmp magic", Mmp, mmp().put32(0, 5), &["mmp-magic-bad"]),
        case("mmp elsewhere", Mmp, superblock(|sb| sb.mmp_block = 100), &["mmp-block-wrong"]),
        case("mmp checksum", Mmp, mmp().put32(16, 5).stale(), &["mmp-checksum-bad"]),
        case("mmp fsck", Mmp, mmp().put32(4, 0xe24d_4d50), &["mmp-in-use"]),
    ]
}
