//! The rows. Codes are printed, logged and scripted against: never reuse one, never renumber.
//!
//! One file on purpose, although long: it is data, and `macro_rules` makes one type of one table.
//! Rows stand in the order of their codes; `docs/problems-not-raised.tsv` has the catalogue's rest.
//! Fields: the place first (`inode` or `dir`, `group`, `logical`, `block`, byte), then the evidence
//! (`stored`, and `expected` or `counted`). A `block` or `node` of 0 in extent and attribute rows
//! means "in the inode itself".

use super::{Evidence, Name, Object, Row, Severity, Weight, problems};
use crate::saved::{Decoder, Encoder, Fault, Saved};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

problems! {
    // The superblock, the group descriptors, the journal, before any scan.
    0x000001 "group-block-bitmap-out-of-range" GroupBlockBitmapOutOfRange {
        group: GroupNr, block: BlockNr,
    }
        Metadata Damage ask Group
        "the descriptor of {group} puts the block bitmap at {block}, which is not allowed there"
        means "The group descriptor names a block for its block bitmap that cannot hold it: the \
             map of free blocks of this group is lost."
        repair "Choose a new block and rebuild the bitmap in it from what is really in use.";
    0x000002 "group-inode-bitmap-out-of-range" GroupInodeBitmapOutOfRange {
        group: GroupNr, block: BlockNr,
    }
        Metadata Damage ask Group
        "the descriptor of {group} puts the inode bitmap at {block}, which is not allowed there"
        means "The group descriptor names a block for its inode bitmap that cannot hold it: the \
             map of free inodes of this group is lost."
        repair "Choose a new block and rebuild the bitmap in it from what is really in use.";
    0x000003 "group-inode-table-out-of-range" GroupInodeTableOutOfRange {
        group: GroupNr, block: BlockNr,
    }
        DataRisk Damage ask Group
        "the descriptor of {group} puts the inode table at {block}, which is not allowed there"
        means "The group descriptor does not say where the inodes of this group are. If the \
             descriptor alone is wrong, a backup copy still knows."
        repair "Take the location from a backup descriptor if one is good; otherwise place an \
             empty table, which loses every inode of the group.";
    0x000004 "superblock-unusable" SuperblockUnusable
        Fatal Fatal ask Superblock
        "no usable superblock was found"
        means "Neither the primary superblock nor a backup describes a file system that could be \
             read."
        repair "None. Name a backup superblock, or make sure that this is the right device.";
    0x000005 "filesystem-exceeds-device" FilesystemExceedsDevice { blocks: u64, device_blocks: u64 }
        Fatal Damage ask Superblock
        "the file system has {blocks} blocks, the device only {device_blocks}"
        means "The device or image is shorter than the file system on it: it was cut off, or the \
             partition shrank. Everything past the end is gone."
        repair "None in place. Restore the full device or image first; shrinking is the last \
             resort.";
    0x000008 "first-data-block-wrong" FirstDataBlockWrong { value: u32, expected: u32 }
        Fatal Fatal ask Superblock
        "the superblock says that data begins at block {value}; with this block size it must be \
             {expected}"
        means "The first data block follows from the block size, so one of the two fields is \
             damaged and nothing can be located."
        repair "None in place. Use a backup superblock.";
    0x000009 "uuid-missing" UuidMissing
        Metadata Remark preen Superblock
        "the file system has no UUID"
        means "The identifier of the file system is all zeroes, so it cannot be told from \
             others."
        repair "Make a random UUID.";
    0x00000B "superblock-field-out-of-range" SuperblockFieldOutOfRange {
        field: &'static str, value: u64,
    }
        Fatal Fatal ask Superblock
        "superblock field {field} has the impossible value {value}"
        means "The geometry of the file system cannot be trusted, so nothing can be located with \
             this superblock."
        repair "None in place. Use a backup superblock.";
    0x00000D "inode-count-mismatch" InodeCountMismatch { stored: u32, expected: u64 }
        Metadata Damage ask Superblock
        "the superblock counts {stored} inodes, its groups have room for {expected}"
        means "The number of inodes follows from the groups; the stored total disagrees with it."
        repair "Store the computed number.";
    0x00000E "hurd-filetype-feature" HurdFiletypeFeature
        Metadata Remark ask Superblock
        "a file system made for the Hurd has file types in its directory entries"
        means "The Hurd uses the byte of the file type otherwise."
        repair "Clear the feature and the type bytes.";
    0x00000F "journal-inode-invalid" JournalInodeInvalid { inode: InodeNr, reason: &'static str }
        DataRisk Damage preen Journal
        "the journal in {inode} cannot be used: {reason}"
        means "The journal cannot be read, so changes that were under way at the last stop may be \
             missing from the file system."
        repair "Try the copy of the journal's location in the superblock; failing that, drop the \
             journal with what it holds and make a new one after the check.";
    0x000010 "external-journal-multiple-users" ExternalJournalMultipleUsers { users: u32 }
        Fatal Fatal ask Journal
        "the external journal is shared by {users} file systems"
        means "Recovery from a shared journal is not supported by any checker."
        repair "None.";
    0x000011 "external-journal-not-found" ExternalJournalNotFound { device: u32 }
        Fatal Fatal ask Journal
        "the journal is on another device (number {device:#x}), which was not found"
        means "The file system keeps its journal on a separate device; without it the newest \
             changes cannot be judged or recovered."
        repair "None. Name the journal device.";
    0x000012 "external-journal-not-a-journal-device" ExternalJournalNotAJournalDevice
        Fatal Fatal ask Journal
        "the device named as external journal does not hold a journal"
        means "The device has no superblock of a journal device, so it is the wrong one or \
             damaged."
        repair "None. Name the right journal device.";
    0x000013 "external-journal-uuid-mismatch" ExternalJournalUuidMismatch
        Fatal Fatal ask Journal
        "the external journal has another UUID than the file system expects"
        means "The journal belongs to some other file system; replaying it would destroy this \
             one."
        repair "None. Name the right journal device.";
    0x000015 "journal-superblock-corrupt" JournalSuperblockCorrupt {
        inode: InodeNr, reason: &'static str,
    }
        DataRisk Damage preen Journal
        "the journal superblock in {inode} is unusable: {reason}"
        means "The header of the journal is damaged, so changes that were under way at the last \
             stop may be missing from the file system."
        repair "Write a fresh, empty journal superblock; what had not been replayed is lost.";
    0x000016 "journal-present-without-feature" JournalPresentWithoutFeature { inode: InodeNr }
        Metadata Damage preen Journal
        "has_journal is off, yet {inode} holds a journal"
        means "A journal is there, but the superblock says that there is none; it would never be \
             replayed."
        repair "Forget the journal, or switch the feature on if that is declined.";
    0x000017 "needs-recovery-without-journal" NeedsRecoveryWithoutJournal
        Metadata Damage preen Journal
        "the superblock asks for journal recovery, but there is no journal"
        means "The flag and the rest of the superblock contradict each other; something was lost \
             or the flag is stale."
        repair "Clear the flag and check everything.";
    0x000018 "journal-has-data-without-needs-recovery" JournalHasDataWithoutNeedsRecovery {
        inode: InodeNr, start: u32,
    }
        DataRisk Damage ask Journal
        "the journal in {inode} holds transactions from its block {start} on, but recovery is not \
             asked for"
        means "Either the journal is stale or the flag was lost; replaying a stale journal would \
             damage newer data."
        repair "Replay the journal, or drop its contents: a decision for a person, except when a \
             backup superblock is in use.";
    0x00001A "revision-zero-with-features" RevisionZeroWithFeatures
        Metadata Remark preen Superblock
        "the superblock is of revision 0, which knows no features, but has feature bits"
        means "An old revision number contradicts the features in use."
        repair "Raise the revision to 1.";
    0x000020 "orphan-inode-processed" OrphanInodeProcessed { inode: InodeNr, links: u16, size: u64 }
        Metadata Remark preen Orphan
        "{inode} was deleted or cut short while open ({links} links, {size} bytes) and waits to \
             be finished"
        means "The system stopped before it could release the blocks of this file. This is normal \
             after a crash."
        repair "Free the inode if it has no links, otherwise cut it to its size.";
    0x000023 "orphan-list-head-invalid" OrphanListHeadInvalid { value: u32 }
        Metadata Damage preen Orphan
        "the orphan list begins with inode number {value}, which is impossible"
        means "The list of interrupted deletions cannot be followed; files on it show up in the \
             scan of the inodes."
        repair "Empty the list; the full check finds what was on it.";
    0x000024 "orphan-list-next-invalid" OrphanListNextInvalid { inode: InodeNr, value: u32 }
        Metadata Damage preen Orphan
        "the orphan list goes on from {inode} to inode number {value}, which is impossible"
        means "The list of interrupted deletions is broken off; files after this one show up in \
             the scan of the inodes."
        repair "Empty the list; the full check finds what was on it.";
    0x000025 "journal-unknown-rocompat-feature" JournalUnknownRocompatFeature { bits: u32 }
        Fatal Damage ask Journal
        "the journal uses unknown read-only features {bits:#x}"
        means "The journal was written by something newer, or its header is damaged. It cannot be \
             replayed safely."
        repair "Use a newer tool; treating the header as corrupt drops the journal's contents.";
    0x000026 "journal-unknown-incompat-feature" JournalUnknownIncompatFeature { bits: u32 }
        Fatal Damage ask Journal
        "the journal uses unknown features {bits:#x}"
        means "The journal was written by something newer, or its header is damaged. It cannot be \
             replayed safely."
        repair "Use a newer tool; treating the header as corrupt drops the journal's contents.";
    0x000027 "journal-version-unknown" JournalVersionUnknown { value: u32 }
        Fatal Damage ask Journal
        "the journal superblock is of the unknown kind {value}"
        means "The journal was written by something newer, or its header is damaged. It cannot be \
             replayed safely."
        repair "Use a newer tool; treating the header as corrupt drops the journal's contents.";
    0x000028 "journal-file-visible" JournalFileVisible { inode: InodeNr, name: Name }
        Metadata Remark preen Journal
        "the journal is the ordinary file {name} ({inode}) in the root directory"
        means "The journal can be seen and deleted by users; it should be the hidden inode 8."
        repair "Move it to inode 8.";
    0x00002A "journal-stale-v2-fields" JournalStaleV2Fields { inode: InodeNr, version: u32 }
        Metadata Damage preen Journal
        "the version {version} journal superblock in {inode} has leftovers in fields that it does \
             not use"
        means "Harmless today, but other software may take the leftovers for features."
        repair "Zero these fields.";
    0x00002D "journal-inode-backup-stale" JournalInodeBackupStale { inode: InodeNr }
        Metadata Remark preen Journal
        "the superblock's copy of the block map of {inode}, the journal, is out of date"
        means "The copy would help to find the journal if its inode were damaged."
        repair "Copy the block map again.";
    0x00002E "reserved-gdt-without-resize-inode" ReservedGdtWithoutResizeInode { value: u16 }
        Metadata Damage ask Superblock
        "{value} blocks are reserved for growing, but resize_inode is off"
        means "The reservation belongs to a feature that is not in use."
        repair "Set the reservation to zero.";
    0x00002F "resize-inode-leftover" ResizeInodeLeftover { inode: InodeNr }
        Metadata Damage ask Inode
        "{inode} holds block numbers although resize_inode is off"
        means "Remains of a feature that is not in use."
        repair "Zero the inode.";
    0x000030 "resize-inode-invalid" ResizeInodeInvalid {
        inode: InodeNr, block: BlockNr, reason: &'static str,
    }
        Metadata Damage ask Inode
        "{inode}, which reserves blocks for growing, is wrong at {block}: {reason}"
        means "The file system cannot be grown online safely. No user data is in this inode."
        repair "Make the inode anew.";
    0x000031 "last-mount-time-in-future" LastMountTimeInFuture { stored: u64, now: u64 }
        Cosmetic Remark preen Superblock
        "the last mount is dated {stored}, which is in the future (now {now}, in seconds since \
             1970)"
        means "A clock was wrong, at the last mount or now."
        repair "Set the time to now.";
    0x000032 "last-write-time-in-future" LastWriteTimeInFuture { stored: u64, now: u64 }
        Cosmetic Remark preen Superblock
        "the last write is dated {stored}, which is in the future (now {now}, in seconds since \
             1970)"
        means "A clock was wrong, at the last write or now."
        repair "Set the time to now.";
    0x000034 "dirhash-signedness-unset" DirhashSignednessUnset
        Cosmetic Remark preen Superblock
        "the superblock does not say whether name hashes treat bytes as signed"
        means "Directory indexes made on other machines may hash names differently."
        repair "Record the way of this machine.";
    0x000035 "group-descriptor-checksum-bad" GroupDescriptorChecksumBad {
        group: GroupNr, stored: u16, expected: u16,
    }
        Metadata Damage preen Group
        "the descriptor of {group} has checksum {stored:#06x}, computed is {expected:#06x}"
        means "The descriptor was changed without its checksum, or is damaged. Linux refuses to \
             mount with such a group."
        repair "Stop trusting its shortcuts, scan the whole group, and store the right \
             checksum.";
    0x000036 "group-uninit-without-checksum-feature" GroupUninitWithoutChecksumFeature {
        group: GroupNr, flags: u16, unused_inodes: u32,
    }
        Metadata Remark preen Group
        "{group} claims uninitialised parts (flags {flags:#x}, {unused_inodes} inodes unused), \
             but the file system has no descriptor checksums"
        means "These shortcuts are only valid with checksums; without them nobody looks at them."
        repair "Clear them and scan the whole group.";
    0x000038 "group-itable-unused-too-large" GroupItableUnusedTooLarge {
        group: GroupNr, stored: u32, limit: u32,
    }
        Metadata Damage preen Group
        "{group} claims {stored} never used inodes, at most {limit} are possible"
        means "Believing the number would hide inodes that are in use."
        repair "Set it to zero and scan the whole table.";
    0x000039 "last-group-block-uninit" LastGroupBlockUninit { group: GroupNr }
        Metadata Damage preen Group
        "{group}, the last one, claims an uninitialised block bitmap"
        means "The last group must always have a real bitmap."
        repair "Clear the flag.";
    0x00003A "journal-transaction-corrupt" JournalTransactionCorrupt {
        sequence: u32, block: BlockNr, reason: &'static str,
    }
        DataRisk Damage ask Journal
        "transaction {sequence} in the journal fails its checksum at journal {block}: {reason}"
        means "A committed change is damaged in the journal. Linux does not mount such a file system; blocks may be newer \
             on the disk than in the transactions before the damage, or older."
        repair "Take the best of the states that the log leaves (damaged-log-weighed), then check everything. Never unattended.";
    0x00003B "test-fs-flag-set" TestFsFlagSet
        Cosmetic Remark preen Superblock
        "the file system is marked as one for testing unfinished code"
        means "A mark of the early days of ext4, without meaning now."
        repair "Clear the mark.";
    0x00003C "last-mount-time-slightly-ahead" LastMountTimeSlightlyAhead { stored: u64, now: u64 }
        Cosmetic Remark preen Superblock
        "the last mount is dated {stored}, a little ahead of now ({now}, in seconds since 1970)"
        means "Clocks differ by less than a day; nothing to worry about."
        repair "Set the time to now.";
    0x00003D "last-write-time-slightly-ahead" LastWriteTimeSlightlyAhead { stored: u64, now: u64 }
        Cosmetic Remark preen Superblock
        "the last write is dated {stored}, a little ahead of now ({now}, in seconds since 1970)"
        means "Clocks differ by less than a day; nothing to worry about."
        repair "Set the time to now.";
    0x000041 "quota-inode-not-reserved" QuotaInodeNotReserved {
        kind: &'static str, inode: InodeNr, expected: InodeNr,
    }
        Metadata Remark preen Quota
        "the {kind} quota file is {inode}; it should be the reserved {expected}"
        means "The quota file can be seen and changed by users."
        repair "Move it to its reserved inode.";
    0x000042 "mmp-block-out-of-range" MmpBlockOutOfRange { block: BlockNr }
        Metadata Fatal ask Mmp
        "the block against multiple mounts is said to be {block}, which cannot be"
        means "Whether another machine uses the file system cannot be found out."
        repair "Clear the field; an administrator then clears or recreates the protection.";
    0x000043 "mmp-magic-bad" MmpMagicBad { block: BlockNr, stored: u32 }
        Metadata Fatal preen Mmp
        "the block against multiple mounts, {block}, begins with {stored:#x} instead of its mark"
        means "Whether another machine uses the file system cannot be found out."
        repair "Make sure that nothing else uses the device, then write a clean block.";
    0x000044 "primary-superblock-open-failed" PrimarySuperblockOpenFailed { reason: &'static str }
        Metadata Damage ask Superblock
        "the primary superblock cannot be used: {reason}"
        means "The check went on with a backup superblock, which may be older."
        repair "Write the primary anew from the backup.";
    0x000045 "group-descriptors-insane" GroupDescriptorsInsane {
        group: GroupNr, reason: &'static str,
    }
        Metadata Damage ask Group
        "the descriptor of {group} makes no sense: {reason}"
        means "Part of the primary group descriptors is damaged. A backup copy may be good."
        repair "Use the backup descriptors if they make sense; otherwise repair each location.";
    0x000046 "gdt-csum-and-metadata-csum-both-set" GdtCsumAndMetadataCsumBothSet
        Metadata Remark preen Superblock
        "both kinds of descriptor checksums are switched on"
        means "The older kind must be off when the newer one is on."
        repair "Switch the older kind off and store all checksums anew.";
    0x000047 "mmp-checksum-bad" MmpChecksumBad { block: BlockNr, stored: u32, expected: u32 }
        Metadata Fatal preen Mmp
        "the block against multiple mounts, {block}, has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "Whether another machine uses the file system cannot be found out."
        repair "Make sure that nothing else uses the device, then write a clean block.";
    0x000048 "64bit-without-extents" Bits64bitWithoutExtents
        Metadata Remark preen Superblock
        "the file system has 64-bit block numbers, but extents are off"
        means "Such block numbers only fit into extents."
        repair "Switch extents on.";
    0x000049 "first-meta-bg-too-big" FirstMetaBgTooBig { stored: u32, limit: u32 }
        Metadata Damage ask Superblock
        "the first meta block group is {stored}, but there are only {limit} descriptor blocks"
        means "The group descriptors cannot be located from this field."
        repair "Switch meta_bg off.";
    0x00004A "external-journal-checksum-bad" ExternalJournalChecksumBad {
        stored: u32, expected: u32,
    }
        Metadata Damage preen Journal
        "the superblock of the external journal has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "The journal device is the right one, but its superblock was changed or damaged."
        repair "Store the right checksum.";
    0x00004B "csum-seed-without-metadata-csum" CsumSeedWithoutMetadataCsum
        Metadata Remark preen Superblock
        "a checksum seed is stored, but metadata checksums are off"
        means "The seed serves nothing."
        repair "Clear the feature and the seed.";
    0x00004D "min-extra-isize-bad" MinExtraIsizeBad { value: u16 }
        Metadata Damage ask Superblock
        "the superblock demands {value} extra bytes in each inode, which cannot be"
        means "The number of bytes that every inode must have beyond the old 128 is impossible."
        repair "Set it to 32.";
    0x00004E "want-extra-isize-bad" WantExtraIsizeBad { value: u16 }
        Metadata Damage ask Superblock
        "the superblock wishes {value} extra bytes in new inodes, which cannot be"
        means "The number of bytes that new inodes should have beyond the old 128 is impossible."
        repair "Set it to 32.";
    0x00004F "quota-inode-number-invalid" QuotaInodeNumberInvalid {
        kind: &'static str, inode: InodeNr,
    }
        Metadata Damage ask Quota
        "the {kind} quota file is said to be {inode}, which cannot hold one"
        means "The superblock names an inode for quotas that serves another purpose or does not \
             exist."
        repair "Name the reserved inode if something is there; else forget it, and this kind of quota \
             is then not tracked.";
    0x000051 "resize-inode-with-meta-bg" ResizeInodeWithMetaBg
        Metadata Damage ask Superblock
        "resize_inode and meta_bg are both on"
        means "The two ways to grow a file system exclude each other."
        repair "Switch resize_inode off.";
    0x000052 "orphan-file-hole-in-recovery" OrphanFileHoleInRecovery {
        inode: InodeNr, logical: LogicalBlock,
    }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has a hole at {logical}"
        means "Interrupted deletions listed in the missing block cannot be finished."
        repair "Check everything and make the orphan file anew.";
    0x000053 "orphan-file-block-magic-bad" OrphanFileBlockMagicBad {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, stored: u32,
    }
        Metadata Damage preen Orphan
        "{block} ({logical}) of the orphan file, {inode}, ends with {stored:#x} instead of its \
             mark"
        means "Interrupted deletions listed in this block cannot be trusted."
        repair "Check everything and write the block anew.";
    0x000054 "orphan-file-block-checksum-bad" OrphanFileBlockChecksumBad {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, stored: u32, expected: u32,
    }
        Metadata Damage preen Orphan
        "{block} ({logical}) of the orphan file, {inode}, has checksum {stored:#010x}, computed \
             is {expected:#010x}"
        means "Interrupted deletions listed in this block cannot be trusted."
        repair "Check everything and write the block anew.";
    0x000055 "orphan-file-size-unaligned-in-recovery" OrphanFileSizeUnalignedInRecovery {
        inode: InodeNr, size: u64,
    }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has {size} bytes, which is no multiple of the block size"
        means "Interrupted deletions listed in it cannot be trusted."
        repair "Check everything and make the orphan file anew.";
    // Inodes, their maps and attributes.
    0x010001 "root-inode-not-directory" RootInodeNotDirectory { inode: InodeNr, mode: u16 }
        DataRisk Damage ask Inode
        "the root, {inode}, has mode {mode:o} and is no directory"
        means "The start of the tree is damaged. Everything below it is still there but has lost \
             its way."
        repair "Make a new root; what was in it turns up in lost+found.";
    0x010002 "root-inode-dtime-set" RootInodeDtimeSet { inode: InodeNr, dtime: u32 }
        Metadata Damage preen Inode
        "the root, {inode}, carries the deletion time {dtime}"
        means "The root was never deleted, so the field is wrong."
        repair "Clear the deletion time.";
    0x010003 "reserved-inode-mode-bad" ReservedInodeModeBad { inode: InodeNr, mode: u16 }
        Metadata Damage preen Inode
        "{inode} is reserved, but has mode {mode:o}"
        means "A reserved inode must not look like a file."
        repair "Clear the mode.";
    0x010004 "deleted-inode-dtime-missing" DeletedInodeDtimeMissing { inode: InodeNr }
        Cosmetic Damage preen Inode
        "{inode} was deleted, but has no deletion time"
        means "Harmless if no directory names the inode, which then is free."
        repair "Set the deletion time; or count a link, if a directory names it and its bitmap says \
             that it is in use.";
    0x010005 "inode-in-use-dtime-set" InodeInUseDtimeSet { inode: InodeNr, dtime: u32 }
        Metadata Damage preen Inode
        "{inode} is in use, but carries the deletion time {dtime}"
        means "Either the deletion was interrupted or the field is wrong; the file is kept."
        repair "Clear the deletion time.";
    0x010006 "directory-without-blocks" DirectoryWithoutBlocks { inode: InodeNr }
        DataRisk Damage preen Dir
        "directory {inode} has no blocks at all"
        means "A directory has at least one block; the list of its names is lost."
        repair "Clear the inode; files that were in it turn up in lost+found.";
    0x010007 "group-block-bitmap-overlap" GroupBlockBitmapOverlap { group: GroupNr, block: BlockNr }
        Metadata Damage ask Group
        "the block bitmap of {group} lies on {block}, where other metadata already is"
        means "Two structures claim the same block, so one overwrites the other."
        repair "Move the bitmap to a free block.";
    0x010008 "group-inode-bitmap-overlap" GroupInodeBitmapOverlap { group: GroupNr, block: BlockNr }
        Metadata Damage ask Group
        "the inode bitmap of {group} lies on {block}, where other metadata already is"
        means "Two structures claim the same block, so one overwrites the other."
        repair "Move the bitmap to a free block.";
    0x010009 "group-inode-table-overlap" GroupInodeTableOverlap { group: GroupNr, block: BlockNr }
        DataRisk Damage ask Group
        "the inode table of {group} lies on {block}, where other metadata already is"
        means "Two structures claim the same block, so one overwrites the other and inodes may be \
             lost."
        repair "Move the table to free blocks.";
    0x01000A "group-block-bitmap-on-bad-block" GroupBlockBitmapOnBadBlock {
        group: GroupNr, block: BlockNr,
    }
        Metadata Damage ask Group
        "the block bitmap of {group} lies on {block}, which is listed as bad"
        means "The bitmap may not be readable for long."
        repair "Move the bitmap to a good block.";
    0x01000B "group-inode-bitmap-on-bad-block" GroupInodeBitmapOnBadBlock {
        group: GroupNr, block: BlockNr,
    }
        Metadata Damage ask Group
        "the inode bitmap of {group} lies on {block}, which is listed as bad"
        means "The bitmap may not be readable for long."
        repair "Move the bitmap to a good block.";
    0x01000C "inode-size-wrong" InodeSizeWrong { inode: InodeNr, stored: u64, expected: u64 }
        Metadata Damage preen Inode
        "{inode} has size {stored}; its blocks say {expected}"
        means "The size and the blocks of the file disagree. If it is too small, bytes at the end \
             cannot be reached."
        repair "Set the size to fit the blocks.";
    0x01000D "inode-block-count-wrong" InodeBlockCountWrong {
        inode: InodeNr, stored: u64, counted: u64,
    }
        Metadata Damage preen Inode
        "{inode} counts {stored} sectors, found are {counted}"
        means "The space accounted to the file is wrong; its content is not affected."
        repair "Store the counted number.";
    0x01000E "block-map-block-out-of-range" BlockMapBlockOutOfRange {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, level: u8,
    }
        DataRisk Damage ask BlockMap
        "{logical} of {inode} is mapped to {block}, which does not exist"
        means "The pointer is damaged; this part of the file cannot be read. If it is a map \
             block, all below it is lost."
        repair "Turn the pointer into a hole.";
    0x010011 "block-map-too-many-bad-blocks" BlockMapTooManyBadBlocks { inode: InodeNr, count: u32 }
        DataRisk Damage ask BlockMap
        "{inode} has {count} or more impossible block numbers"
        means "The block map is probably not one at all: the inode holds garbage."
        repair "Clear the inode; if that is declined, each pointer becomes a hole.";
    0x010012 "badblocks-inode-block-out-of-range" BadblocksInodeBlockOutOfRange {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        Metadata Damage ask BlockMap
        "the list of bad blocks, {inode}, names {block}, which does not exist"
        means "The list is damaged. It holds no user data."
        repair "Drop the entry.";
    0x010015 "badblocks-inode-indirect-block-bad" BadblocksInodeIndirectBlockBad {
        inode: InodeNr, block: BlockNr,
    }
        Metadata Damage ask BlockMap
        "{block} of the map of the bad-block list, {inode}, is itself in use or listed as bad"
        means "The list cannot be trusted. It holds no user data."
        repair "Drop this part of the list.";
    0x010019 "primary-superblock-on-bad-block" PrimarySuperblockOnBadBlock { block: BlockNr }
        DataRisk Damage ask Superblock
        "{block}, where the primary superblock is, is listed as bad"
        means "The superblock cannot be moved. Copy the file system to another device if the \
             block is really bad."
        repair "Drop the block from the list of bad blocks.";
    0x01001A "primary-descriptors-on-bad-block" PrimaryDescriptorsOnBadBlock {
        group: GroupNr, block: BlockNr,
    }
        DataRisk Damage ask Group
        "{block}, where the primary descriptors of {group} are, is listed as bad"
        means "The descriptors cannot be moved. Copy the file system to another device if the \
             block is really bad."
        repair "Drop the block from the list of bad blocks.";
    0x01001B "backup-superblock-on-bad-block" BackupSuperblockOnBadBlock {
        group: GroupNr, block: BlockNr,
    }
        Cosmetic Remark preen Superblock
        "{block}, where the backup superblock in {group} is, is listed as bad"
        means "One of the spare copies may be unusable."
        repair "None needed.";
    0x01001C "backup-descriptors-on-bad-block" BackupDescriptorsOnBadBlock {
        group: GroupNr, block: BlockNr,
    }
        Cosmetic Remark preen Group
        "{block}, where backup descriptors in {group} are, is listed as bad"
        means "One of the spare copies may be unusable."
        repair "None needed.";
    0x01001D "bad-block-owner-unknown" BadBlockOwnerUnknown { block: BlockNr }
        Cosmetic Remark preen BlockMap
        "{block} is listed as bad, but something uses it"
        means "A file or a directory lies on a block that the list calls bad."
        repair "None; copy the file away if it can be read.";
    0x010029 "inode-block-walk-failed" InodeBlockWalkFailed {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, level: u8,
    }
        Fatal Damage ask BlockMap
        "the map of {inode} cannot be followed through {block} (at {logical})"
        means "A map block cannot be read or does not exist; the part of the file below it cannot \
             be reached."
        repair "Turn the pointer into a hole; the mappings below it are lost.";
    0x01002F "imagic-flag-unsupported" ImagicFlagUnsupported { inode: InodeNr }
        Metadata Damage ask Inode
        "{inode} has the flag of AFS inodes, which this file system does not support"
        means "The flag is meaningless here."
        repair "Clear the flag.";
    0x010030 "special-file-immutable-flag" SpecialFileImmutableFlag { inode: InodeNr, flags: u32 }
        Cosmetic Remark ask Inode
        "{inode} is a device, pipe or socket with the immutable or append-only flag \
             ({flags:#x})"
        means "The flags have no use on such a file."
        repair "Clear the flags.";
    0x010032 "special-file-size-nonzero" SpecialFileSizeNonzero { inode: InodeNr, size: u64 }
        Metadata Damage preen Inode
        "{inode} is a device, pipe or socket, but has a size of {size} bytes"
        means "Such files have no content."
        repair "Set the size to zero.";
    0x010033 "revision-zero-with-large-files" RevisionZeroWithLargeFiles
        Metadata Remark preen Superblock
        "the superblock is of revision 0, but large files or directories exist"
        means "An old revision number contradicts the content."
        repair "Raise the revision to 1.";
    0x010034 "journal-inode-leftover" JournalInodeLeftover { inode: InodeNr }
        Metadata Damage preen Journal
        "{inode} holds something although the journal is not there"
        means "Remains of an old journal take up the reserved inode."
        repair "Zero the inode; its blocks become free.";
    0x010035 "journal-inode-not-regular" JournalInodeNotRegular { inode: InodeNr, mode: u16 }
        Metadata Damage preen Journal
        "the journal, {inode}, has mode {mode:o} and is no regular file"
        means "The type of the journal inode is damaged."
        repair "Make it a regular file.";
    0x010036 "inode-dtime-looks-like-orphan-link" InodeDtimeLooksLikeOrphanLink {
        inode: InodeNr, dtime: u32,
    }
        Metadata Damage ask Orphan
        "the deletion time of {inode} is {dtime}, which looks like the next number of an orphan \
             list"
        means "The inode was on the list of interrupted deletions, and the list was lost."
        repair "Clear the field if the inode has links, otherwise date its deletion.";
    0x010039 "xattr-block-unreadable" XattrBlockUnreadable { inode: InodeNr, block: BlockNr }
        DataRisk Damage ask Xattr
        "the extended attributes of {inode} in {block} cannot be read"
        means "The attributes of the file in this block (access lists, labels) are out of reach."
        repair "Take the block away from the inode; these attributes are lost.";
    0x01003A "xattr-block-magic-bad" XattrBlockMagicBad {
        inode: InodeNr, block: BlockNr, stored: u32,
    }
        DataRisk Damage ask Xattr
        "{block} should hold extended attributes of {inode}, but begins with {stored:#x}"
        means "The block is overwritten or the pointer is wrong; the attributes in it are lost."
        repair "Take the block away from the inode.";
    0x01003C "xattr-block-refcount-wrong" XattrBlockRefcountWrong {
        block: BlockNr, stored: u32, counted: u32,
    }
        Metadata Damage ask Xattr
        "attribute {block} says that {stored} inodes share it, found are {counted}"
        means "The count decides when the block is freed; too low a count frees it under its \
             users."
        repair "Store the counted number.";
    0x01003E "xattr-block-count-bad" XattrBlockCountBad {
        inode: InodeNr, block: BlockNr, stored: u32,
    }
        DataRisk Damage ask Xattr
        "attribute {block} of {inode} claims to consist of {stored} blocks"
        means "Attributes have exactly one block."
        repair "Keep the attributes that hash and place prove, and remove the others; take the block away if none is left.";
    0x010040 "xattr-block-overlap" XattrBlockOverlap {
        inode: InodeNr, block: BlockNr, offset_bytes: u32,
    }
        DataRisk Damage ask Xattr
        "attributes of {inode} overlap or leave {block} (at byte {offset_bytes})"
        means "Names or values in the attribute block are damaged."
        repair "Keep the attributes that hash and place prove, and remove the others; take the block away if none is left.";
    0x010041 "xattr-block-name-bad" XattrBlockNameBad {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, index: u8,
    }
        DataRisk Damage ask Xattr
        "an attribute of {inode} in {block} (at byte {offset_bytes}) has a name of the impossible \
             class {index}"
        means "An attribute name is damaged."
        repair "Keep the attributes that hash and place prove, and remove the others; take the block away if none is left.";
    0x010042 "xattr-block-value-bad" XattrBlockValueBad {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, value_offset: u32, value_size: u32,
    }
        DataRisk Damage ask Xattr
        "an attribute of {inode} in {block} (at byte {offset_bytes}) has a value of {value_size} \
             bytes at {value_offset}, outside the block"
        means "An attribute value is damaged."
        repair "Keep the attributes that hash and place prove, and remove the others; take the block away if none is left.";
    0x010044 "directory-too-big" DirectoryTooBig {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask Dir
        "directory {inode} reaches as far as {logical} ({block}), which is too far"
        means "A directory of this file system cannot be so large; the pointer is damaged."
        repair "Drop the block from the directory.";
    0x010045 "file-too-big" FileTooBig { inode: InodeNr, logical: LogicalBlock, block: BlockNr }
        DataRisk Damage ask BlockMap
        "{inode} reaches as far as {logical} ({block}), further than a block map can"
        means "The pointer is damaged."
        repair "Drop the block from the file.";
    0x010046 "symlink-too-big" SymlinkTooBig {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask BlockMap
        "{inode} is no file or directory, but has {block} at {logical}"
        means "Links and special files have at most one block."
        repair "Drop the block from the inode.";
    0x010047 "index-flag-without-dir-index" IndexFlagWithoutDirIndex { inode: InodeNr }
        Metadata Damage preen Htree
        "directory {inode} is marked as indexed, but indexes are off"
        means "The file system must not have directory indexes."
        repair "Clear the mark; the directory is read as a list.";
    0x010048 "index-flag-on-non-directory" IndexFlagOnNonDirectory { inode: InodeNr }
        Metadata Damage preen Htree
        "{inode} is marked as an indexed directory, but is no directory"
        means "The mark is meaningless here."
        repair "Clear the mark.";
    0x010049 "htree-root-invalid" HtreeRootInvalid { inode: InodeNr, reason: &'static str }
        Metadata Damage preen Htree
        "the index of directory {inode} has a bad root: {reason}"
        means "Names can only be found by reading the directory as a list. No name is lost."
        repair "Drop the index and build it anew.";
    0x01004A "htree-hash-version-unknown" HtreeHashVersionUnknown { inode: InodeNr, version: u8 }
        Metadata Damage preen Htree
        "the index of directory {inode} uses the unknown hash {version}"
        means "Names can only be found by reading the directory as a list. No name is lost."
        repair "Drop the index and build it anew.";
    0x01004B "htree-incompat-flag" HtreeIncompatFlag { inode: InodeNr, flags: u8 }
        Metadata Damage preen Htree
        "the index of directory {inode} has unknown flags {flags:#x}"
        means "The index is of an unknown kind. No name is lost."
        repair "Drop the index and build it anew.";
    0x01004C "htree-too-deep" HtreeTooDeep { inode: InodeNr, depth: u8 }
        Metadata Damage preen Htree
        "the index of directory {inode} claims {depth} levels below its root"
        means "The index is deeper than allowed. No name is lost."
        repair "Drop the index and build it anew.";
    0x01004D "badblocks-inode-indirect-on-metadata" BadblocksInodeIndirectOnMetadata {
        inode: InodeNr, block: BlockNr,
    }
        Metadata Damage ask BlockMap
        "{block} of the map of the bad-block list, {inode}, lies on metadata of the file system"
        means "The list cannot be trusted. It holds no user data."
        repair "Drop this part of the list.";
    0x01004F "inode-extra-isize-bad" InodeExtraIsizeBad { inode: InodeNr, value: u16 }
        Metadata Damage preen Inode
        "{inode} claims {value} extra bytes, which cannot be"
        means "The boundary between the fields of the inode and its attributes is damaged."
        repair "Store a valid number; attributes in the inode may be dropped.";
    0x010053 "xattr-value-size-bad" XattrValueSizeBad {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, value_size: u32,
    }
        DataRisk Damage preen Xattr
        "an attribute of {inode} ({block}, byte {offset_bytes}) has a value of the impossible \
             size {value_size}"
        means "An attribute value is damaged. Block 0 means: in the inode itself."
        repair "Correct the field that is wrong, if the value proves it; else remove the attribute and keep the others.";
    0x010054 "xattr-hash-bad" XattrHashBad {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, stored: u32, expected: u32,
    }
        DataRisk Damage preen Xattr
        "an attribute of {inode} ({block}, byte {offset_bytes}) has hash {stored:#010x}, computed \
             is {expected:#010x}"
        means "The name or value of an attribute was changed or damaged. Block 0 means: in the \
             inode itself."
        repair "Correct the field that is wrong, if the value proves it; else remove the attribute and keep the others.";
    0x010055 "inode-is-really-directory" InodeIsReallyDirectory { inode: InodeNr, mode: u16 }
        DataRisk Damage ask Inode
        "{inode} has mode {mode:o}, but its first block holds a directory"
        means "The type of the inode was overwritten; its content says that it is a directory."
        repair "Set the type to directory.";
    0x010057 "extent-tree-walk-failed" ExtentTreeWalkFailed {
        inode: InodeNr, node: BlockNr, reason: &'static str,
    }
        DataRisk Damage ask Extent
        "the extent tree of {inode} cannot be followed through {node}: {reason}"
        means "The part of the file below this node cannot be found."
        repair "Clear the inode if nothing can be saved, otherwise the node.";
    0x010058 "extent-start-out-of-range" ExtentStartOutOfRange {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask Extent
        "{inode}: the entry for {logical} in the extent tree ({node}) leads to {block}, which \
             does not exist"
        means "The pointer is damaged; this part of the file cannot be read. Block 0 as the node \
             means: in the inode itself."
        repair "Remove the entry with all below it.";
    0x010059 "extent-end-out-of-range" ExtentEndOutOfRange {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr, len: u32,
    }
        DataRisk Damage ask Extent
        "{inode}: the extent for {logical} ({node}) has {len} blocks from {block} on and ends \
             outside the file system"
        means "The extent is damaged; this part of the file cannot be read."
        repair "Remove the extent.";
    0x01005A "extents-flag-unsupported" ExtentsFlagUnsupported { inode: InodeNr }
        DataRisk Damage ask Extent
        "{inode} is marked as mapped by extents, but extents are off and it has no valid extent \
             header"
        means "Nothing says where the file is."
        repair "Put back the blocks whose checksums say that they are the file's; without any, clear \
                the inode.";
    0x01005B "extents-feature-missing" ExtentsFeatureMissing { inode: InodeNr }
        Metadata Damage ask Superblock
        "{inode} is mapped by extents, but the feature is off in the superblock"
        means "The feature bit was lost; the file itself is fine."
        repair "Switch the feature on.";
    0x01005C "extents-flag-missing" ExtentsFlagMissing { inode: InodeNr }
        Metadata Damage preen Extent
        "{inode} is mapped by extents, but not marked so"
        means "The mark was lost; read as a block map, the file would be garbage."
        repair "Set the mark.";
    0x01005D "fast-symlink-extents-flag" FastSymlinkExtentsFlag { inode: InodeNr }
        Metadata Damage ask Inode
        "symbolic link {inode} holds its text in the inode, but is marked as mapped by extents"
        means "The mark is wrong."
        repair "Clear the mark.";
    0x01005E "extents-out-of-order" ExtentsOutOfOrder {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask Extent
        "{inode}: the entry for {logical} ({node}, leading to {block}) is out of order"
        means "The extent tree must ascend; entries that do not cannot be found reliably."
        repair "Remove the entry with all below it.";
    0x01005F "extent-node-header-corrupt" ExtentNodeHeaderCorrupt {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr, reason: &'static str,
    }
        DataRisk Damage ask Extent
        "{inode}: {block}, an extent node for {logical} (named in {node}), has a bad header: \
             {reason}"
        means "The node is overwritten or the pointer wrong; what it mapped cannot be found."
        repair "Remove the pointer to the node; the mappings below it are lost.";
    0x010062 "quota-inode-not-regular" QuotaInodeNotRegular {
        kind: &'static str, inode: InodeNr, mode: u16,
    }
        Metadata Damage preen Quota
        "the {kind} quota file, {inode}, has mode {mode:o} and is no regular file"
        means "The type of the quota inode is damaged."
        repair "Make it a regular file.";
    0x010063 "quota-inode-leftover" QuotaInodeLeftover { inode: InodeNr }
        Metadata Damage preen Quota
        "{inode} is reserved for quotas, which are off, but holds something"
        means "Remains of old quotas."
        repair "Zero the inode; its blocks become free.";
    0x010065 "badblocks-inode-invalid" BadblocksInodeInvalid {
        inode: InodeNr, reason: &'static str,
    }
        Metadata Damage ask Inode
        "the list of bad blocks, {inode}, is invalid: {reason}"
        means "The list is damaged. It holds no user data."
        repair "Empty the list.";
    0x010066 "extent-length-zero" ExtentLengthZero {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask Extent
        "{inode}: the extent for {logical} ({node}, at {block}) is empty"
        means "An extent of no blocks maps nothing and should not be."
        repair "Remove the extent.";
    0x010067 "inode-block-garbage" InodeBlockGarbage { inode: InodeNr, block: BlockNr }
        DataRisk Damage ask Inode
        "{inode} lies in {block} of the inode table, most of which is garbage"
        means "The block of the inode table was overwritten; the inodes in it are not to be \
             believed."
        repair "Clear the inode.";
    0x010068 "inode-checksum-bad" InodeChecksumBad { inode: InodeNr, stored: u32, expected: u32 }
        Metadata Damage preen Inode
        "{inode} has checksum {stored:#010x}, computed is {expected:#010x}"
        means "The inode was changed without its checksum, or a bit flipped; all its fields look \
             sound."
        repair "Store the right checksum.";
    0x010069 "xattr-ibody-overlap" XattrIbodyOverlap { inode: InodeNr, offset_bytes: u32 }
        DataRisk Damage ask Xattr
        "attributes in {inode} overlap or leave it (at byte {offset_bytes})"
        means "Names or values of attributes are damaged."
        repair "Keep the attributes that hash or place prove, and remove the others.";
    0x01006A "extent-block-checksum-bad" ExtentBlockChecksumBad {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, stored: u32, expected: u32,
    }
        Metadata Damage ask Extent
        "{inode}: extent {node} (for {logical}) has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "The node was changed without its checksum, or a bit flipped; its structure is \
             sound."
        repair "Store the right checksum.";
    0x01006C "xattr-block-checksum-bad" XattrBlockChecksumBad {
        inode: InodeNr, block: BlockNr, stored: u32, expected: u32,
    }
        Metadata Damage ask Xattr
        "attribute {block} of {inode} has checksum {stored:#010x}, computed is {expected:#010x}"
        means "The block was changed without its checksum, or a bit flipped; its structure is \
             sound."
        repair "Store the right checksum.";
    0x01006D "extent-index-start-mismatch" ExtentIndexStartMismatch {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr,
        expected: LogicalBlock,
    }
        Metadata Damage ask Extent
        "{inode}: the index entry in {node} says that {block} begins at {logical}, it begins at \
             {expected}"
        means "The index and the node that it names disagree; lookups may miss the blocks \
             between."
        repair "Correct the index.";
    0x01006E "extent-past-parent-range" ExtentPastParentRange {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, len: u32, limit: LogicalBlock,
    }
        DataRisk Damage ask Extent
        "{inode}: the entry for {logical} ({len} blocks, in {node}) reaches past {limit}, where \
             its parent's range ends"
        means "Lookups go by the parent, so the blocks past the limit belong to another branch."
        repair "Remove the entry.";
    0x01006F "inline-data-feature-missing" InlineDataFeatureMissing { inode: InodeNr }
        Metadata Damage preen Superblock
        "{inode} holds its data inside the inode, but the feature is off in the superblock"
        means "The feature bit was lost; the file itself is fine."
        repair "Switch the feature on.";
    0x010070 "inline-data-flag-unsupported" InlineDataFlagUnsupported { inode: InodeNr }
        DataRisk Damage ask InlineData
        "{inode} is marked as holding its data, but the feature is off and no data is there"
        means "The mark or the inode is damaged."
        repair "Clear the inode.";
    0x010071 "map-node-overlaps-critical-metadata" MapNodeOverlapsCriticalMetadata {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask BlockMap
        "{block}, part of the map of {inode} (for {logical}), lies on metadata of the file \
             system"
        means "The map or the metadata is overwritten by the other."
        repair "Copy the map block elsewhere and look at the mapping again.";
    0x010072 "directory-extent-gap" DirectoryExtentGap {
        inode: InodeNr, logical: LogicalBlock, expected: LogicalBlock,
    }
        Metadata Damage ask Dir
        "directory {inode} goes on at {logical} where {expected} should follow"
        means "Directories have no gaps; the names in them are still there."
        repair "Close the gap.";
    0x010073 "directory-extent-unwritten" DirectoryExtentUnwritten {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, len: u32,
    }
        Metadata Damage preen Dir
        "directory {inode} has {len} blocks at {logical} ({block}) marked as never written"
        means "Blocks of a directory are always written."
        repair "Clear the mark and judge the content.";
    0x010074 "cluster-misaligned-mapping" ClusterMisalignedMapping {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask BlockMap
        "{logical} of {inode} is mapped to {block}, at another place in its cluster"
        means "Blocks must keep their place in a cluster; two parts of the file may share one."
        repair "Copy the cluster to an aligned place.";
    0x010075 "inline-data-attr-missing" InlineDataAttrMissing { inode: InodeNr }
        DataRisk Damage ask InlineData
        "{inode} is marked as holding its data, but no data is there"
        means "The data of this small file or directory is lost or its attributes are damaged."
        repair "Empty the file.";
    0x010076 "special-file-extents-or-inline-flag" SpecialFileExtentsOrInlineFlag {
        inode: InodeNr, flags: u32,
    }
        Metadata Remark ask Inode
        "{inode} is a device, pipe or socket marked as having extents or inline data \
             ({flags:#x})"
        means "The marks have no use on such a file."
        repair "Clear the marks.";
    0x010077 "inline-and-extents-flags-extent-root" InlineAndExtentsFlagsExtentRoot {
        inode: InodeNr,
    }
        Metadata Damage ask InlineData
        "{inode} is marked both as holding its data and as mapped by extents; extents are what it \
             has"
        means "One of the two marks is wrong."
        repair "Clear the mark of inline data.";
    0x010078 "inline-and-extents-flags-small-file" InlineAndExtentsFlagsSmallFile { inode: InodeNr }
        Metadata Damage ask InlineData
        "{inode} is marked both as holding its data and as mapped by extents; it is small enough \
             to hold its data"
        means "One of the two marks is wrong."
        repair "Clear the mark of extents.";
    0x010079 "inline-and-extents-flags-block-map" InlineAndExtentsFlagsBlockMap { inode: InodeNr }
        DataRisk Damage ask InlineData
        "{inode} is marked both as holding its data and as mapped by extents, but has a block \
             map"
        means "Both marks are wrong."
        repair "Clear both marks.";
    0x01007A "inline-and-extents-flags-junk" InlineAndExtentsFlagsJunk { inode: InodeNr }
        DataRisk Damage ask InlineData
        "{inode} is marked both as holding its data and as mapped by extents, and its map fits no \
             format"
        means "Nothing says where the file is."
        repair "Clear the inode.";
    0x01007B "badblocks-list-contains-itself" BadblocksListContainsItself {
        inode: InodeNr, block: BlockNr,
    }
        Metadata Damage ask Inode
        "the list of bad blocks names {block}, which holds {inode}, the list itself"
        means "The list is damaged. It holds no user data."
        repair "Empty the list.";
    0x01007D "extent-overlaps-previous" ExtentOverlapsPrevious {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr, len: u32,
    }
        DataRisk Damage ask Extent
        "{inode}: the extent for {logical} ({len} blocks from {block}, in {node}) covers what an \
             earlier one already maps"
        means "Two extents claim the same part of the file."
        repair "Remove the later extent.";
    0x01007F "extent-tree-too-deep" ExtentTreeTooDeep { inode: InodeNr, stored: u16, limit: u16 }
        Cosmetic Remark ask Extent
        "the extent tree of {inode} has depth {stored}; {limit} suffices for any file"
        means "Slower than need be, but sound."
        repair "Build the tree anew.";
    0x010080 "bigalloc-block-mapped-file" BigallocBlockMappedFile { inode: InodeNr }
        Metadata Damage ask BlockMap
        "{inode} has a block map, which a file system of clusters does not allow"
        means "Such a file cannot be written by Linux."
        repair "Convert it to extents.";
    0x010081 "inode-extent-header-corrupt" InodeExtentHeaderCorrupt {
        inode: InodeNr, reason: &'static str,
    }
        DataRisk Damage ask Extent
        "the root of the extent tree in {inode} is bad: {reason}"
        means "Nothing says where the file is."
        repair "Clear the inode.";
    0x010082 "inode-time-epoch-misencoded" InodeTimeEpochMisencoded {
        inode: InodeNr, field: &'static str, seconds: u32, extra: u32,
    }
        Cosmetic Remark preen Inode
        "{field} of {inode} ({seconds:#x}, extra {extra:#x}) is a date before 1970 stored as one \
             in the far future"
        means "An old error of some systems."
        repair "Correct the two bits.";
    0x010083 "xattr-ea-inode-number-bad" XattrEaInodeNumberBad {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, value_inode: InodeNr,
    }
        DataRisk Damage preen Xattr
        "an attribute of {inode} ({block}, byte {offset_bytes}) keeps its value in {value_inode}, \
             which cannot be"
        means "The value of the attribute is lost. Block 0 means: in the inode itself."
        repair "Correct the field that is wrong, if the value proves it; else remove the attribute and keep the others.";
    0x010086 "xattr-ea-inode-flag-missing" XattrEaInodeFlagMissing {
        inode: InodeNr, value_inode: InodeNr,
    }
        Metadata Damage preen Xattr
        "{value_inode} holds an attribute value of {inode}, but is not marked so"
        means "The mark was lost; the value is fine."
        repair "Set the mark.";
    0x010088 "casefold-flag-on-non-directory" CasefoldFlagOnNonDirectory { inode: InodeNr }
        Metadata Damage ask Casefold
        "{inode} is marked as ignoring case, but is no directory"
        means "The mark has no use here."
        repair "Clear the mark.";
    0x010089 "casefold-flag-unsupported" CasefoldFlagUnsupported { inode: InodeNr }
        Metadata Damage ask Casefold
        "directory {inode} is marked as ignoring case, but the feature is off"
        means "The mark is wrong, or the feature bit was lost."
        repair "Clear the mark.";
    0x01008A "encrypt-flag-without-context" EncryptFlagWithoutContext { inode: InodeNr }
        DataRisk Damage ask Encryption
        "{inode} is marked as encrypted, but has no encryption context"
        means "Without the context the content cannot be decrypted."
        repair "Clear the mark.";
    0x01008B "encryption-context-corrupt" EncryptionContextCorrupt {
        inode: InodeNr, version: u8, len: u32,
    }
        DataRisk Damage ask Encryption
        "the encryption context of {inode} (version {version}, {len} bytes) is invalid"
        means "Without the context the content cannot be decrypted by anyone."
        repair "Clear the inode.";
    0x01008D "htree-siphash-required" HtreeSiphashRequired { inode: InodeNr, version: u8 }
        Metadata Damage preen Htree
        "the index of the encrypted, case-ignoring directory {inode} uses hash {version} instead \
             of SipHash"
        means "Lookups cannot work with this hash. No name is lost."
        repair "Drop the index and build it anew.";
    0x01008E "htree-siphash-not-allowed" HtreeSiphashNotAllowed { inode: InodeNr }
        Metadata Damage preen Htree
        "the index of directory {inode} uses SipHash, which is for encrypted, case-ignoring \
             directories"
        means "Lookups cannot work with this hash. No name is lost."
        repair "Drop the index and build it anew.";
    0x01008F "orphan-file-not-regular" OrphanFileNotRegular { inode: InodeNr, mode: u16 }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has mode {mode:o} and is no regular file"
        means "The type of the inode is damaged."
        repair "Make it a regular file.";
    0x010090 "orphan-file-inode-leftover" OrphanFileInodeLeftover { inode: InodeNr }
        Metadata Damage preen Orphan
        "{inode} is named as orphan file and holds something, but the feature is off"
        means "Remains of an orphan file."
        repair "Zero the inode; its blocks become free.";
    0x010091 "ea-inode-flag-on-non-regular" EaInodeFlagOnNonRegular { inode: InodeNr }
        Metadata Damage ask Inode
        "{inode} is marked as holding an attribute value, but is no regular file"
        means "The mark is wrong."
        repair "Clear the mark.";
    0x010092 "ea-inode-feature-missing" EaInodeFeatureMissing {
        inode: InodeNr, value_inode: InodeNr,
    }
        Metadata Damage preen Superblock
        "an attribute of {inode} keeps its value in {value_inode}, but the feature is off in the \
             superblock"
        means "The feature bit was lost; the attribute is fine."
        repair "Switch the feature on.";
    // Blocks with more than one owner.
    0x011002 "multiply-claimed-block" MultiplyClaimedBlock { inode: InodeNr, block: BlockNr }
        DataRisk Damage ask BlockMap
        "{inode} claims {block}, which something else claims too"
        means "Two owners write to the same block: the content of at least one of them is \
             damaged."
        repair "Give every owner but one a copy of its own.";
    0x011008 "multiply-claimed-range" MultiplyClaimedRange {
        inode: InodeNr, block: BlockNr, len: u64,
    }
        DataRisk Damage ask BlockMap
        "{inode} claims {len} blocks from {block} on, which something else claims too"
        means "Two owners write to the same blocks: the content of at least one of them is \
             damaged."
        repair "Give every owner but one a copy of its own.";
    0x013001 "multiply-claimed-file" MultiplyClaimedFile {
        inode: InodeNr, shared_blocks: u64, sharers: u32,
    }
        DataRisk Damage ask BlockMap
        "{inode} shares blocks with others (blocks: {shared_blocks}, other inodes: {sharers})"
        means "The content of this file or of another is damaged: compare both with a backup before \
             a repair. Where no other inode claims them, the file does so twice, or metadata of the \
             file system lies there."
        repair "Give the file copies of the shared blocks.";
    0x013002 "multiply-claimed-sharer" MultiplyClaimedSharer { inode: InodeNr, sharer: InodeNr }
        DataRisk Damage ask BlockMap
        "{inode} shares blocks with {sharer}"
        means "The content of one of the two is damaged."
        repair "Give each its own blocks.";
    0x013003 "multiply-claimed-with-metadata" MultiplyClaimedWithMetadata { inode: InodeNr }
        DataRisk Damage ask BlockMap
        "{inode} shares blocks with metadata of the file system"
        means "Writing to this file overwrites the structure of the file system, or has done so."
        repair "Give the file copies; the metadata keeps its blocks.";
    // Extent trees that could be better.
    0x014006 "extent-tree-collapsible" ExtentTreeCollapsible { inode: InodeNr, depth: u16 }
        Cosmetic Remark ask Extent
        "the extent tree of {inode} (depth {depth}) would fit into fewer levels"
        means "Slower than need be, but sound."
        repair "Build the tree anew.";
    0x014007 "extent-tree-narrowable" ExtentTreeNarrowable { inode: InodeNr, depth: u16 }
        Cosmetic Remark ask Extent
        "the extent tree of {inode} has nodes to spare at depth {depth}"
        means "Larger than need be, but sound."
        repair "Build the tree anew.";
    // Directories.
    0x020001 "dot-entry-wrong-inode" DotEntryWrongInode {
        dir: InodeNr, logical: LogicalBlock, inode_named: InodeNr,
    }
        Metadata Damage ask Dirent
        "{dir}: the entry '.' names {inode_named} instead of the directory"
        means "The entry of the directory for itself is damaged."
        repair "Let it name the directory.";
    0x020002 "dirent-inode-illegal" DirentInodeIllegal {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Dirent
        "{dir}: entry {name} names {inode_named}, which no name may lead to"
        means "The number is reserved or does not exist; the name leads nowhere."
        repair "Clear the entry.";
    0x020003 "dirent-inode-unused" DirentInodeUnused {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage preen Dirent
        "{dir}: entry {name} names {inode_named}, which is not in use"
        means "A name leads to an inode that holds no file."
        repair "Clear the entry.";
    0x020004 "dirent-links-to-own-directory" DirentLinksToOwnDirectory {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        Metadata Damage ask Dirent
        "{dir}: entry {name} names the directory itself"
        means "A directory must not contain itself."
        repair "Clear the entry.";
    0x020005 "dirent-inode-on-bad-block" DirentInodeOnBadBlock {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Dirent
        "{dir}: entry {name} names {inode_named}, which lies in an unreadable block"
        means "The inode of this file cannot be read."
        repair "Clear the entry.";
    0x020006 "directory-hard-link" DirectoryHardLink {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        Metadata Damage ask Dirent
        "{dir}: entry {name} is a second name of directory {inode_named}"
        means "A directory has exactly one name."
        repair "Clear the entry; the name found first stays.";
    0x020007 "dirent-links-to-root" DirentLinksToRoot {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        Metadata Damage ask Dirent
        "{dir}: entry {name} names the root directory"
        means "The root has no name."
        repair "Clear the entry.";
    0x020008 "dirent-name-illegal-char" DirentNameIllegalChar {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Dirent
        "{dir}: the name {name} ({inode_named}) contains a slash or a zero byte"
        means "Such a name cannot be used; it is damaged."
        repair "Replace these bytes by dots.";
    0x020009 "dot-entry-missing" DotEntryMissing { dir: InodeNr, logical: LogicalBlock }
        Metadata Damage ask Dirent
        "{dir} lacks its entry '.' ({logical})"
        means "The entry of the directory for itself was cleared."
        repair "Put the entry back.";
    0x02000A "dotdot-entry-missing" DotdotEntryMissing { dir: InodeNr, logical: LogicalBlock }
        Metadata Damage ask Dirent
        "{dir} lacks its entry '..' ({logical})"
        means "The entry for the parent directory was cleared."
        repair "Put the entry back; the parent follows from the tree.";
    0x02000B "first-entry-not-dot" FirstEntryNotDot {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Dirent
        "{dir}: the first entry is {name} ({inode_named}) instead of '.'"
        means "The start of the directory was overwritten."
        repair "Overwrite it by '.'; the file that it names loses this name.";
    0x02000C "second-entry-not-dotdot" SecondEntryNotDotdot {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Dirent
        "{dir}: the second entry is {name} ({inode_named}) instead of '..'"
        means "The start of the directory was overwritten."
        repair "Overwrite it by '..'; the file that it names loses this name.";
    0x02000D "inode-faddr-nonzero" InodeFaddrNonzero { inode: InodeNr, value: u32 }
        Cosmetic Damage ask Inode
        "{inode} has the fragment address {value}, a field that must be zero"
        means "Nothing uses the field."
        repair "Set it to zero.";
    0x02000E "inode-file-acl-without-xattr-feature" InodeFileAclWithoutXattrFeature {
        inode: InodeNr, block: BlockNr, attributes: u32,
    }
        DataRisk Damage ask Xattr
        "{inode} names {block} for attributes, but the feature is off; {attributes} can be read there"
        means "The feature bit was lost, or the pointer is garbage. If the block holds attributes, \
             the bit was lost: e2fsck clears the pointer all the same."
        repair "Switch the feature on if attributes can be read there; otherwise clear the pointer.";
    0x02000F "directory-size-high-nonzero" DirectorySizeHighNonzero { inode: InodeNr, value: u32 }
        Metadata Damage ask Dir
        "directory {inode} has {value} in the upper half of its size"
        means "The directory cannot be so large."
        repair "Set the upper half to zero.";
    0x020010 "inode-frag-nonzero" InodeFragNonzero { inode: InodeNr, value: u8 }
        Cosmetic Damage ask Inode
        "{inode} has the fragment number {value}, a field that must be zero"
        means "Nothing uses the field."
        repair "Set it to zero.";
    0x020011 "inode-fsize-nonzero" InodeFsizeNonzero { inode: InodeNr, value: u8 }
        Cosmetic Damage ask Inode
        "{inode} has the fragment size {value}, a field that must be zero"
        means "Nothing uses the field."
        repair "Set it to zero.";
    0x020012 "inode-mode-illegal" InodeModeIllegal { inode: InodeNr, mode: u16 }
        DataRisk Damage ask Inode
        "{inode} has mode {mode:o}, which is no type of file"
        means "The inode is damaged or garbage."
        repair "Release the inode and clear the entries that name it.";
    0x020013 "dirent-structure-corrupt" DirentStructureCorrupt {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, record_len: u32, name_len: u8,
    }
        DataRisk Damage ask Dir
        "{dir}: {logical} is broken at byte {offset_bytes} (entry of {record_len} bytes with a \
             name of {name_len})"
        means "From here on the names in this block cannot be told apart."
        repair "Save the entries that still make sense; other files of the block turn up in \
             lost+found.";
    0x020015 "directory-hole" DirectoryHole { dir: InodeNr, logical: LogicalBlock }
        Metadata Damage ask Dir
        "{dir} has a hole at {logical}"
        means "A block of the directory is not mapped; names in it are lost."
        repair "Put an empty block there.";
    0x020016 "dot-entry-not-terminated" DotEntryNotTerminated {
        dir: InodeNr, logical: LogicalBlock,
    }
        Cosmetic Damage ask Dirent
        "{dir}: the entry '.' is not ended by a zero byte"
        means "Only very old software minds."
        repair "Write the entry anew.";
    0x020017 "dotdot-entry-not-terminated" DotdotEntryNotTerminated {
        dir: InodeNr, logical: LogicalBlock,
    }
        Cosmetic Damage ask Dirent
        "{dir}: the entry '..' is not ended by a zero byte"
        means "Only very old software minds."
        repair "Write the entry anew.";
    0x020018 "char-device-invalid" CharDeviceInvalid { inode: InodeNr, reason: &'static str }
        DataRisk Damage ask Inode
        "{inode} cannot be a character device: {reason}"
        means "The inode is damaged; probably it was another kind of file."
        repair "Release the inode and clear the entries that name it.";
    0x020019 "block-device-invalid" BlockDeviceInvalid { inode: InodeNr, reason: &'static str }
        DataRisk Damage ask Inode
        "{inode} cannot be a block device: {reason}"
        means "The inode is damaged; probably it was another kind of file."
        repair "Release the inode and clear the entries that name it.";
    0x02001A "dot-entry-duplicate" DotEntryDuplicate {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr,
    }
        Metadata Damage ask Dirent
        "{dir} has a second entry '.' (at byte {offset_bytes} of {logical}, naming \
             {inode_named})"
        means "Only the first entry of a directory may have this name."
        repair "Clear the entry.";
    0x02001B "dotdot-entry-duplicate" DotdotEntryDuplicate {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr,
    }
        Metadata Damage ask Dirent
        "{dir} has a second entry '..' (at byte {offset_bytes} of {logical}, naming \
             {inode_named})"
        means "Only the second entry of a directory may have this name."
        repair "Clear the entry.";
    0x020020 "dir-block-read-error" DirBlockReadError {
        dir: InodeNr, logical: LogicalBlock, block: BlockNr,
    }
        DataRisk Damage ask Dir
        "{dir}: {logical} ({block}) cannot be read"
        means "The names in this block are out of reach. A copy of the device made with a rescue \
             tool may still have them."
        repair "Treat the block as empty; its files turn up in lost+found.";
    0x020024 "dot-entry-oversized" DotEntryOversized {
        dir: InodeNr, logical: LogicalBlock, record_len: u32,
    }
        Metadata Remark ask Dirent
        "{dir}: the entry '.' takes {record_len} bytes"
        means "More room than needed, nothing else."
        repair "Cut it to 12 bytes.";
    0x020025 "fifo-invalid" FifoInvalid { inode: InodeNr, reason: &'static str }
        DataRisk Damage ask Inode
        "{inode} cannot be a pipe: {reason}"
        means "The inode is damaged; probably it was another kind of file."
        repair "Release the inode and clear the entries that name it.";
    0x020026 "socket-invalid" SocketInvalid { inode: InodeNr, reason: &'static str }
        DataRisk Damage ask Inode
        "{inode} cannot be a socket: {reason}"
        means "The inode is damaged; probably it was another kind of file."
        repair "Release the inode and clear the entries that name it.";
    0x020027 "dirent-type-unset" DirentTypeUnset {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
        expected: u8,
    }
        Cosmetic Remark preen Dirent
        "{dir}: entry {name} does not give the type of {inode_named} (it is {expected})"
        means "Reading the directory is slower, nothing else."
        repair "Store the type.";
    0x020028 "dirent-type-wrong" DirentTypeWrong {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
        stored: u8, expected: u8,
    }
        Metadata Damage ask Dirent
        "{dir}: entry {name} says that {inode_named} is of type {stored}, it is {expected}"
        means "Programs that go by the type of the entry take the file for something else."
        repair "Store the right type.";
    0x020029 "dirent-type-unsupported" DirentTypeUnsupported {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
        stored: u8,
    }
        Cosmetic Damage preen Dirent
        "{dir}: entry {name} ({inode_named}) has type {stored}, but this file system stores no \
             types"
        means "The byte must be zero."
        repair "Clear the type.";
    0x020030 "dirent-name-empty" DirentNameEmpty {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr,
    }
        DataRisk Damage ask Dirent
        "{dir}: an entry at byte {offset_bytes} of {logical} names {inode_named} without a name"
        means "A file without a name cannot be reached."
        repair "Clear the entry.";
    0x020031 "symlink-invalid" SymlinkInvalid { inode: InodeNr, size: u64, reason: &'static str }
        DataRisk Damage ask Inode
        "symbolic link {inode} ({size} bytes) is invalid: {reason}"
        means "Where the link pointed to is lost."
        repair "Release the inode and clear the entries that name it.";
    0x020032 "inode-file-acl-out-of-range" InodeFileAclOutOfRange { inode: InodeNr, block: BlockNr }
        DataRisk Damage ask Xattr
        "{inode} names {block} for its attributes, which does not exist"
        means "The pointer is damaged; the attributes in the block are lost."
        repair "Clear the pointer.";
    0x020033 "large-file-feature-missing" LargeFileFeatureMissing
        Metadata Damage preen Superblock
        "a file of 2 GiB or more exists, but large_file is off"
        means "The feature bit was lost or never set; the files are fine."
        repair "Switch the feature on.";
    0x020034 "htree-block-unreferenced" HtreeBlockUnreferenced {
        dir: InodeNr, logical: LogicalBlock,
    }
        Metadata Damage ask Htree
        "{dir}: the index does not lead to {logical}"
        means "Names in this block cannot be found by lookup, only by listing."
        repair "Build the index anew.";
    0x020035 "htree-block-referenced-twice" HtreeBlockReferencedTwice {
        dir: InodeNr, logical: LogicalBlock,
    }
        Metadata Damage ask Htree
        "{dir}: the index leads to {logical} more than once"
        means "The index contradicts itself. No name is lost."
        repair "Build the index anew.";
    0x020036 "htree-hash-below-range" HtreeHashBelowRange {
        dir: InodeNr, logical: LogicalBlock, found: u32, limit: u32,
    }
        Metadata Damage ask Htree
        "{dir}: {logical} holds hash {found:#010x}, below {limit:#010x} where its range begins"
        means "A name in this block cannot be found by lookup, only by listing."
        repair "Build the index anew.";
    0x020037 "htree-hash-above-range" HtreeHashAboveRange {
        dir: InodeNr, logical: LogicalBlock, found: u32, limit: u32,
    }
        Metadata Damage ask Htree
        "{dir}: {logical} holds hash {found:#010x}, above {limit:#010x} where its range ends"
        means "A name in this block cannot be found by lookup, only by listing."
        repair "Build the index anew.";
    0x020038 "htree-inconsistent" HtreeInconsistent { dir: InodeNr }
        Metadata Damage ask Htree
        "{dir}: the index is inconsistent"
        means "Lookups can miss names; listing still shows them all."
        repair "Drop the index and build it anew.";
    0x020039 "large-dir-feature-missing" LargeDirFeatureMissing { dir: InodeNr }
        Metadata Damage preen Superblock
        "{dir} is a very large directory, but large_dir is off"
        means "The feature bit was lost or never set; the directory is fine."
        repair "Switch the feature on.";
    0x02003A "htree-block-number-bad" HtreeBlockNumberBad {
        dir: InodeNr, logical: LogicalBlock, value: u32,
    }
        Metadata Damage ask Htree
        "{dir}: the index in {logical} names block {value}, which the directory does not have"
        means "The index is damaged. No name is lost."
        repair "Drop the index and build it anew.";
    0x02003C "htree-root-bad" HtreeRootBad { dir: InodeNr, reason: &'static str }
        Metadata Damage preen Htree
        "{dir}: the root of the index is bad: {reason}"
        means "The index is damaged. No name is lost."
        repair "Drop the index and build it anew.";
    0x02003D "htree-limit-wrong" HtreeLimitWrong {
        dir: InodeNr, logical: LogicalBlock, stored: u16, expected: u16,
    }
        Metadata Damage preen Htree
        "{dir}: the index node in {logical} has room for {expected} entries, but claims {stored}"
        means "The index is damaged. No name is lost."
        repair "Drop the index and build it anew.";
    0x02003E "htree-count-too-large" HtreeCountTooLarge {
        dir: InodeNr, logical: LogicalBlock, stored: u16, limit: u16,
    }
        Metadata Damage preen Htree
        "{dir}: the index node in {logical} claims {stored} entries, there is room for {limit}"
        means "The index is damaged. No name is lost."
        repair "Drop the index and build it anew.";
    0x02003F "htree-hashes-unordered" HtreeHashesUnordered {
        dir: InodeNr, logical: LogicalBlock, entry: u16,
    }
        Metadata Damage preen Htree
        "{dir}: entry {entry} of the index node in {logical} is out of order"
        means "Lookups can miss names. No name is lost."
        repair "Drop the index and build it anew.";
    0x020040 "htree-leaf-depth-wrong" HtreeLeafDepthWrong {
        dir: InodeNr, logical: LogicalBlock, depth: u16, expected: u16,
    }
        Metadata Damage ask Htree
        "{dir}: {logical} is {depth} steps below the root of the index instead of {expected}"
        means "The index is damaged. No name is lost."
        repair "Build the index anew.";
    0x020043 "dirent-duplicate-in-block" DirentDuplicateInBlock {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
        first_inode: InodeNr,
    }
        DataRisk Damage ask Dirent
        "{dir}: {logical} has the name {name} twice, for {first_inode} and {inode_named}"
        means "Only one of the two files can be reached by the name."
        repair "Build the directory anew; one of the two is dropped or renamed.";
    0x020044 "inode-blocks-high-nonzero" InodeBlocksHighNonzero { inode: InodeNr, value: u16 }
        Metadata Damage ask Inode
        "{inode} has {value} in the upper part of its block count, which is not in use here"
        means "Without huge_file the field must be zero."
        repair "Set it to zero.";
    0x020046 "dirent-inode-in-uninit-group" DirentInodeInUninitGroup {
        group: GroupNr, dir: InodeNr, logical: LogicalBlock, offset_bytes: u32,
        inode_named: InodeNr, name: Name,
    }
        Metadata Damage preen Group
        "{dir}: entry {name} names {inode_named} in {group}, which claims to have no inodes in \
             use"
        means "The group descriptor hides files that exist."
        repair "Clear the claim and scan the group.";
    0x020047 "dirent-inode-in-unused-area" DirentInodeInUnusedArea {
        group: GroupNr, dir: InodeNr, logical: LogicalBlock, offset_bytes: u32,
        inode_named: InodeNr, name: Name,
    }
        Metadata Damage preen Group
        "{dir}: entry {name} names {inode_named} in the part of {group} that claims to be unused"
        means "The group descriptor hides files that exist."
        repair "Clear the claim and scan the group.";
    0x020048 "inode-file-acl-high-nonzero" InodeFileAclHighNonzero { inode: InodeNr, value: u16 }
        Metadata Damage preen Inode
        "{inode} has {value} in the upper part of its attribute block number, which is not in use \
             here"
        means "Without 64bit the field must be zero."
        repair "Set it to zero.";
    0x020049 "htree-root-checksum-bad" HtreeRootChecksumBad {
        dir: InodeNr, stored: u32, expected: u32,
    }
        Metadata Damage preen Htree
        "{dir}: the root of the index has checksum {stored:#010x}, computed is {expected:#010x}"
        means "The block was changed without its checksum, or is damaged."
        repair "Drop the index and build it anew.";
    0x02004A "htree-node-checksum-bad" HtreeNodeChecksumBad {
        dir: InodeNr, logical: LogicalBlock, stored: u32, expected: u32,
    }
        Metadata Damage preen Htree
        "{dir}: the index node in {logical} has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "The block was changed without its checksum, or is damaged."
        repair "Drop the index and build it anew.";
    0x02004C "dir-block-checksum-tail-missing" DirBlockChecksumTailMissing {
        dir: InodeNr, logical: LogicalBlock,
    }
        Metadata Damage preen Dir
        "{dir}: {logical} has no place for its checksum"
        means "The end of the block was overwritten; its names cannot be verified."
        repair "Build the directory anew.";
    0x02004D "dir-block-checksum-bad" DirBlockChecksumBad {
        dir: InodeNr, logical: LogicalBlock, stored: u32, expected: u32,
    }
        Metadata Damage preen Dir
        "{dir}: {logical} has checksum {stored:#010x}, computed is {expected:#010x}"
        means "The block was changed without its checksum, or a bit flipped; its structure is \
             sound."
        repair "Store the right checksum.";
    0x02004E "inline-directory-size-bad" InlineDirectorySizeBad { dir: InodeNr, size: u64 }
        DataRisk Damage ask InlineData
        "{dir} holds its entries in the inode, in the impossible size of {size} bytes"
        means "The end of the small directory is damaged."
        repair "Cut or stretch it to the nearest valid size.";
    0x020050 "encrypted-name-too-short" EncryptedNameTooShort {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Encryption
        "{dir}: the name {name} ({inode_named}) is too short for an encrypted one"
        means "No encrypted name is shorter than 16 bytes; it can never be decrypted."
        repair "Clear the entry; if the directory has only such names, of files that are not \
             encrypted, clear its mark instead.";
    0x020051 "encrypted-dir-plain-file" EncryptedDirPlainFile {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Encryption
        "encrypted {dir} has the unencrypted {inode_named} as {name}"
        means "All that lies in an encrypted directory must be encrypted by the same policy."
        repair "Clear the entry.";
    0x020052 "encrypted-dir-policy-mismatch" EncryptedDirPolicyMismatch {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Encryption
        "encrypted {dir} has {inode_named} of another policy as {name}"
        means "All that lies in an encrypted directory must be encrypted by the same policy."
        repair "Clear the entry.";
    0x020053 "casefold-name-invalid-encoding" CasefoldNameInvalidEncoding {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        DataRisk Damage ask Casefold
        "{dir}: the name {name} ({inode_named}) is not valid text"
        means "A directory that ignores case needs names in its encoding."
        repair "Replace the invalid rest of the name by dots.";
    0x020055 "dirent-links-to-ea-inode" DirentLinksToEaInode {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, name: Name,
    }
        Metadata Damage ask Dirent
        "{dir}: entry {name} names {inode_named}, which holds an attribute value"
        means "Such inodes have no names."
        repair "Clear the entry.";
    // The tree.
    0x030001 "root-inode-missing" RootInodeMissing { inode: InodeNr }
        DataRisk Damage ask Inode
        "the root directory, {inode}, is not in use"
        means "The start of the tree is lost. Everything below it is still there but has lost its \
             way."
        repair "Make a new root; what was in it turns up in lost+found.";
    0x030003 "directory-unconnected" DirectoryUnconnected { dir: InodeNr, parent: InodeNr }
        DataRisk Damage ask Dir
        "directory {dir} is in no directory (its '..' says {parent})"
        means "The name of the directory is lost; all that is in it is there."
        repair "Put it into lost+found.";
    0x030004 "lost-found-missing" LostFoundMissing
        Metadata Remark preen Dir
        "the root directory has no lost+found"
        means "A repair needs it for files that lost their names."
        repair "Create it.";
    0x030005 "dotdot-wrong-parent" DotdotWrongParent {
        dir: InodeNr, stored: InodeNr, expected: InodeNr,
    }
        Metadata Damage ask Dirent
        "{dir}: the entry '..' names {stored}, but the directory is in {expected}"
        means "Going up from this directory leads to the wrong place."
        repair "Let '..' name the directory that it is in.";
    0x030017 "lost-found-not-directory" LostFoundNotDirectory { inode: InodeNr, mode: u16 }
        DataRisk Remark ask Dir
        "/lost+found is {inode} with mode {mode:o} and no directory"
        means "A repair needs a directory of this name for files that lost theirs."
        repair "Remove the name and create the directory; the file turns up in it.";
    0x030018 "lost-found-inline" LostFoundInline { inode: InodeNr }
        Metadata Remark ask InlineData
        "/lost+found ({inode}) holds its entries in the inode"
        means "A repair needs one that has blocks."
        repair "Create a new one.";
    0x03001B "lost-found-encrypted" LostFoundEncrypted { inode: InodeNr }
        Metadata Remark ask Encryption
        "/lost+found ({inode}) is encrypted"
        means "A repair cannot put names into it without the key."
        repair "Create a new one.";
    0x03001D "directory-loop" DirectoryLoop { dir: InodeNr, parent: InodeNr }
        DataRisk Damage ask Dir
        "directory {dir} is inside itself: going up from it through {parent} never reaches the \
             root"
        means "The directories of the loop cannot be reached."
        repair "Break the loop by putting this directory into lost+found.";
    // Names and links.
    0x040001 "unattached-empty-inode" UnattachedEmptyInode { inode: InodeNr }
        Metadata Damage preen Inode
        "{inode} is empty and has no name"
        means "A file without content is left over."
        repair "Free the inode.";
    0x040002 "unattached-inode" UnattachedInode { inode: InodeNr, links: u16 }
        DataRisk Damage ask Inode
        "{inode} has no name (it counts {links})"
        means "The name of the file is lost; its content is there."
        repair "Put it into lost+found.";
    0x040003 "inode-link-count-wrong" InodeLinkCountWrong {
        inode: InodeNr, stored: u16, counted: u32,
    }
        Metadata Damage preen Inode
        "{inode} says that it has {stored} names, found are {counted}"
        means "Too low a count frees the file while names still lead to it; too high a one never \
             frees it."
        repair "Store the counted number.";
    0x040005 "ea-inode-refcount-wrong" EaInodeRefcountWrong {
        inode: InodeNr, stored: u64, counted: u64,
    }
        Metadata Damage preen Xattr
        "{inode} says that {stored} attributes use its value, found are {counted}"
        means "Too low a count frees the value while attributes still use it."
        repair "Store the counted number.";
    0x040006 "dir-nlink-feature-missing" DirNlinkFeatureMissing { inode: InodeNr, counted: u32 }
        Metadata Damage ask Superblock
        "directory {inode} has {counted} links, but dir_nlink is off"
        means "The feature bit was lost or never set; the directory is fine."
        repair "Switch the feature on.";
    0x040007 "directory-link-count-overflow-stale" DirectoryLinkCountOverflowStale {
        inode: InodeNr, counted: u32,
    }
        Cosmetic Remark preen Inode
        "directory {inode} says that it has too many links to count, found are {counted}"
        means "The directory was once larger."
        repair "Store the counted number.";
    0x040008 "ea-inode-flag-unreferenced" EaInodeFlagUnreferenced { inode: InodeNr }
        Metadata Damage preen Inode
        "{inode} is marked as holding an attribute value, but no attribute uses it"
        means "A leftover, or the attribute that used it is lost."
        repair "Clear the mark; the file is then freed or put into lost+found.";
    // Bitmaps and counts.
    0x050001 "inode-bitmap-padding-clear" InodeBitmapPaddingClear { group: GroupNr }
        Metadata Damage preen Bitmap
        "{group}: the inode bitmap is not filled up at its end"
        means "Bits after the last inode must be set."
        repair "Set them.";
    0x050002 "block-bitmap-padding-clear" BlockBitmapPaddingClear { group: GroupNr }
        Metadata Damage preen Bitmap
        "{group}: the block bitmap is not filled up at its end"
        means "Bits after the last block must be set."
        repair "Set them.";
    0x050004 "block-bitmap-leaked-block" BlockBitmapLeakedBlock { group: GroupNr, block: BlockNr }
        Metadata Damage preen Bitmap
        "{group}: {block} is marked as used, but nothing uses it"
        means "The space cannot be used until a repair."
        repair "Mark it as free.";
    0x050005 "block-bitmap-missing-block" BlockBitmapMissingBlock { group: GroupNr, block: BlockNr }
        DataRisk Damage preen Bitmap
        "{group}: {block} is in use, but marked as free"
        means "The next write may put other data there and destroy what is in it."
        repair "Mark it as used.";
    0x050008 "inode-bitmap-leaked-inode" InodeBitmapLeakedInode { group: GroupNr, inode: InodeNr }
        Metadata Damage preen Bitmap
        "{group}: {inode} is marked as used, but is not"
        means "No file can use the inode until a repair."
        repair "Mark it as free.";
    0x050009 "inode-bitmap-missing-inode" InodeBitmapMissingInode { group: GroupNr, inode: InodeNr }
        DataRisk Damage preen Bitmap
        "{group}: {inode} is in use, but marked as free"
        means "The next file created may overwrite it."
        repair "Mark it as used.";
    0x05000B "group-free-inode-count-wrong" GroupFreeInodeCountWrong {
        group: GroupNr, stored: u32, counted: u32,
    }
        Metadata Damage preen Group
        "{group} counts {stored} free inodes, found are {counted}"
        means "The count serves the choice of a group; no file is affected."
        repair "Store the counted number.";
    0x05000C "group-directory-count-wrong" GroupDirectoryCountWrong {
        group: GroupNr, stored: u32, counted: u32,
    }
        Metadata Damage preen Group
        "{group} counts {stored} directories, found are {counted}"
        means "The count serves the choice of a group; no file is affected."
        repair "Store the counted number.";
    0x05000D "free-inode-total-wrong" FreeInodeTotalWrong { stored: u32, counted: u32 }
        Cosmetic Remark preen Superblock
        "the superblock counts {stored} free inodes, found are {counted}"
        means "Linux keeps this total only roughly; it computes it at every mount."
        repair "Store the counted number.";
    0x05000E "group-free-block-count-wrong" GroupFreeBlockCountWrong {
        group: GroupNr, stored: u32, counted: u32,
    }
        Metadata Damage preen Group
        "{group} counts {stored} free clusters, found are {counted}"
        means "The count serves the choice of a group; no file is affected. A cluster is a block \
             unless bigalloc is on."
        repair "Store the counted number.";
    0x05000F "free-block-total-wrong" FreeBlockTotalWrong { stored: u64, counted: u64 }
        Cosmetic Remark preen Superblock
        "the superblock counts {stored} free blocks, found are {counted}"
        means "Linux keeps this total only roughly; it computes it at every mount."
        repair "Store the counted number.";
    0x050014 "block-bitmap-leaked-range" BlockBitmapLeakedRange {
        group: GroupNr, block: BlockNr, len: u64,
    }
        Metadata Damage preen Bitmap
        "{group}: {len} blocks from {block} on are marked as used, but nothing uses them"
        means "The space cannot be used until a repair."
        repair "Mark them as free.";
    0x050015 "block-bitmap-missing-range" BlockBitmapMissingRange {
        group: GroupNr, block: BlockNr, len: u64,
    }
        DataRisk Damage preen Bitmap
        "{group}: {len} blocks from {block} on are in use, but marked as free"
        means "The next write may put other data there and destroy what is in them."
        repair "Mark them as used.";
    0x050016 "inode-bitmap-leaked-range" InodeBitmapLeakedRange {
        group: GroupNr, inode: InodeNr, len: u32,
    }
        Metadata Damage preen Bitmap
        "{group}: {len} inodes from {inode} on are marked as used, but are not"
        means "No file can use these inodes until a repair."
        repair "Mark them as free.";
    0x050017 "inode-bitmap-missing-range" InodeBitmapMissingRange {
        group: GroupNr, inode: InodeNr, len: u32,
    }
        DataRisk Damage preen Bitmap
        "{group}: {len} inodes from {inode} on are in use, but marked as free"
        means "The next files created may overwrite them."
        repair "Mark them as used.";
    0x050018 "block-used-in-uninit-group" BlockUsedInUninitGroup { group: GroupNr, block: BlockNr }
        Metadata Damage preen Group
        "{group} claims an uninitialised block bitmap, but {block} is in use"
        means "Linux would take the block for free and may overwrite it."
        repair "Clear the claim.";
    0x050019 "inode-used-in-uninit-group" InodeUsedInUninitGroup { group: GroupNr, inode: InodeNr }
        Metadata Damage preen Group
        "{group} claims to have no inodes in use, but {inode} is"
        means "Linux would take the inode for free and may overwrite it."
        repair "Clear the claim.";
    0x05001A "inode-bitmap-checksum-bad" InodeBitmapChecksumBad {
        group: GroupNr, block: BlockNr, stored: u32, expected: u32,
    }
        Metadata Damage preen Bitmap
        "{group}: the inode bitmap in {block} has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "The bitmap was changed without its checksum, or is damaged. Linux stops using such \
             a group."
        repair "Store the right checksum.";
    0x05001B "block-bitmap-checksum-bad" BlockBitmapChecksumBad {
        group: GroupNr, block: BlockNr, stored: u32, expected: u32,
    }
        Metadata Damage preen Bitmap
        "{group}: the block bitmap in {block} has checksum {stored:#010x}, computed is \
             {expected:#010x}"
        means "The bitmap was changed without its checksum, or is damaged. Linux stops using such \
             a group."
        repair "Store the right checksum.";
    // Quotas and the orphan file.
    0x060002 "quota-usage-wrong" QuotaUsageWrong {
        kind: &'static str, id: u32, stored_bytes: u64, counted_bytes: u64, stored_inodes: u64,
        counted_inodes: u64,
    }
        Metadata Damage preen Quota
        "{kind} quota of id {id}: stored are {stored_bytes} bytes in {stored_inodes} files, found \
             {counted_bytes} bytes in {counted_inodes}"
        means "Limits are applied to wrong numbers; no file is affected."
        repair "Write the quota file anew with the counted numbers; limits are kept.";
    0x060007 "orphan-file-without-journal" OrphanFileWithoutJournal { inode: InodeNr }
        Metadata Damage preen Orphan
        "the file system has an orphan file, {inode}, but no journal"
        means "An orphan file is only of use with a journal."
        repair "Drop the orphan file.";
    0x060009 "orphan-file-corrupt" OrphanFileCorrupt { inode: InodeNr, reason: &'static str }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, cannot be used: {reason}"
        means "Interrupted deletions cannot be recorded in it. It holds no user data."
        repair "Make it anew.";
    0x06000C "orphan-file-block-dirty" OrphanFileBlockDirty {
        inode: InodeNr, logical: LogicalBlock, block: BlockNr, reason: &'static str,
    }
        Metadata Damage preen Orphan
        "{block} ({logical}) of the orphan file, {inode}, is not clean: {reason}"
        means "No file should be waiting for its deletion any more."
        repair "Write a clean block.";
    0x06000D "orphan-present-flag-stale" OrphanPresentFlagStale
        Cosmetic Damage preen Orphan
        "the superblock says that files wait for their deletion, but the orphan file is empty"
        means "A leftover flag."
        repair "Clear the flag.";
    0x06000E "orphan-present-without-orphan-file" OrphanPresentWithoutOrphanFile
        Metadata Damage preen Orphan
        "the superblock says that files wait for their deletion, but there is no orphan file"
        means "A leftover flag, or the feature bit was lost."
        repair "Clear the flag.";
    0x06000F "orphan-file-size-unaligned" OrphanFileSizeUnaligned { inode: InodeNr, size: u64 }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has {size} bytes, which is no multiple of the block size"
        means "Its end is damaged. It holds no user data."
        repair "Make the file anew.";
    0x060010 "orphan-file-hole" OrphanFileHole { inode: InodeNr, logical: LogicalBlock }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has a hole at {logical}"
        means "It must be fully mapped. It holds no user data."
        repair "Make the file anew.";
    // Floe's own: no e2fsck code.
    0x070001 "unreadable-block" UnreadableBlock { inode: InodeNr, block: BlockNr }
        DataRisk Damage ask Device
        "{block}, which belongs to {inode}, cannot be read"
        means "The device reports an error for this block. Inode 0 means the file system itself. \
             Copy the device with a rescue tool before any repair."
        repair "None; what was in the block is lost unless the device gives it back.";
    0x070002 "unreadable-inode-table" UnreadableInodeTable { group: GroupNr, block: BlockNr }
        DataRisk Damage ask Device
        "{block} of the inode table of {group} cannot be read"
        means "The device reports an error: the files whose inodes are in this block cannot be \
             judged. Copy the device with a rescue tool before any repair."
        repair "None; the inodes are lost unless the device gives the block back.";
    0x070003 "unreadable-bitmap" UnreadableBitmap {
        group: GroupNr, block: BlockNr, kind: &'static str,
    }
        Metadata Damage ask Device
        "the {kind} bitmap of {group}, {block}, cannot be read"
        means "The device reports an error. The bitmap can be computed from what is in use."
        repair "Write the computed bitmap, elsewhere if the block stays bad.";
    0x070004 "unreadable-group-descriptors" UnreadableGroupDescriptors {
        group: GroupNr, block: BlockNr,
    }
        Metadata Damage ask Device
        "{block}, which holds the descriptor of {group}, cannot be read"
        means "The device reports an error. Backup copies of the descriptors exist in other \
             groups."
        repair "Use a backup copy.";
    0x070005 "image-truncated" ImageTruncated { size_bytes: u64, needed_bytes: u64 }
        DataRisk Damage ask Device
        "the device ends after {size_bytes} bytes, metadata in use reaches to {needed_bytes}"
        means "The image or device was cut off; what lay past its end is gone."
        repair "None in place. Get the whole image.";
    0x070007 "unknown-revision" UnknownRevision { value: u32 }
        Fatal Fatal ask Superblock
        "the file system is of the unknown revision {value}"
        means "Something newer wrote this file system, or the superblock is damaged."
        repair "None. Use a newer version.";
    0x070008 "unknown-name-encoding" UnknownNameEncoding { value: u16 }
        Fatal Fatal ask Superblock
        "file names are in the unknown encoding {value}"
        means "Names that ignore case cannot be compared without the rules of their encoding."
        repair "None. Use a newer version.";
    0x070009 "mounted-during-check" MountedDuringCheck
        Cosmetic Remark ask Device
        "the file system is mounted"
        means "It may change while it is read; findings may be artefacts, and none proves \
             damage."
        repair "None. Unmount it, or check a snapshot.";
    0x07000B "recovery-pending" RecoveryPending { start: u32, sequence: u32 }
        Cosmetic Remark preen Journal
        "the journal holds changes not yet in place (from its block {start}, transaction \
             {sequence})"
        means "The file system was not unmounted cleanly. This is normal after a crash."
        repair "Replay the journal.";
    0x07000C "orphans-pending" OrphansPending { inodes: u32 }
        Cosmetic Remark preen Orphan
        "{inodes} files wait for the end of their deletion"
        means "They were deleted or cut short while open when the system stopped. This is normal \
             after a crash."
        repair "Release their blocks.";
    0x07000D "fast-commit-corrupt" FastCommitCorrupt { block: BlockNr, reason: &'static str }
        DataRisk Damage ask Journal
        "the fast commits in the journal are damaged at journal {block}: {reason}"
        means "Changes that programs waited for may be missing: fast commits from there on, or the one record that asks for what \
             cannot be done and later ones of its inode. Where a sound one follows, Linux and e2fsck take the place for the end."
        repair "Replay the sound ones before it, then check everything. Never unattended.";
    0x07000E "journal-error-recorded" JournalErrorRecorded { errno: i64 }
        Metadata Damage preen Journal
        "the journal recorded error {errno}"
        means "The system met an error of the device or the file system and stopped the journal."
        repair "Clear the record after a full check.";
    0x07000F "timestamp-nanoseconds-bad" TimestampNanosecondsBad {
        inode: InodeNr, field: &'static str, value: u32,
    }
        Cosmetic Remark ask Inode
        "{field} of {inode} has {value} nanoseconds, more than a second"
        means "The fraction of the time is damaged."
        repair "Set it to zero.";
    0x070010 "not-cleanly-unmounted" NotCleanlyUnmounted { state: u16 }
        Cosmetic Remark preen Superblock
        "the file system was not unmounted cleanly (state {state:#x})"
        means "It is mounted, or the system stopped while it was."
        repair "Mark it as clean after a full check.";
    0x070011 "kernel-recorded-errors" KernelRecordedErrors {
        count: u32, first_time: u64, last_time: u64,
    }
        Metadata Remark ask Superblock
        "the system recorded {count} errors in this file system (the last at {last_time}, the \
             first at {first_time}, in seconds since 1970)"
        means "Linux met damage while the file system was mounted; what it met may already be \
             repaired."
        repair "Clear the record after a full check.";
    0x070012 "backup-superblock-differs" BackupSuperblockDiffers {
        group: GroupNr, field: &'static str, stored: u64, expected: u64,
    }
        Metadata Remark preen Superblock
        "the backup superblock in {group} has {field} {stored:#x}, the primary {expected:#x}"
        means "The backup is out of date; it would mislead a rescue."
        repair "Write the backups anew.";
    0x070013 "backup-superblock-bad" BackupSuperblockBad {
        group: GroupNr, block: BlockNr, reason: &'static str,
    }
        Metadata Remark preen Superblock
        "the backup superblock in {group} ({block}) cannot be used: {reason}"
        means "One of the spare copies would not help in a rescue. If it cannot be read, the device fails: copy the device first."
        repair "Write the backups anew.";
    0x070014 "backup-descriptors-bad" BackupDescriptorsBad {
        group: GroupNr, block: BlockNr, reason: &'static str,
    }
        Metadata Remark preen Group
        "the backup descriptors in {group} ({block}) cannot be used: {reason}"
        means "One of the spare copies would not help in a rescue. If it cannot be read, the device fails: copy the device first."
        repair "Write the backups anew.";
    0x070015 "superblock-checksum-bad" SuperblockChecksumBad {
        block: BlockNr, stored: u32, expected: u32,
    }
        Metadata Damage ask Superblock
        "the superblock at {block} has checksum {stored:#010x}, computed is {expected:#010x}"
        means "The superblock was changed without its checksum, or is damaged. Linux refuses to \
             mount it."
        repair "Compare it with a backup and store the right checksum.";
    0x070016 "mmp-in-use" MmpInUse { block: BlockNr, sequence: u32 }
        Fatal Fatal ask Mmp
        "the block against multiple mounts, {block}, says that another machine or checker is at \
             work (sequence {sequence:#x})"
        means "Another node may have the file system mounted; judging or repairing it now is \
             unsafe."
        repair "None. Make sure that nothing else uses the device.";
    0x070017 "quota-file-corrupt" QuotaFileCorrupt {
        kind: &'static str, inode: InodeNr, logical: LogicalBlock, reason: &'static str,
    }
        Metadata Damage preen Quota
        "the {kind} quota file, {inode}, is damaged at {logical}: {reason}"
        means "Limits and usage of some users cannot be read."
        repair "Write the quota file anew with counted usage; limits that can be read are kept.";
    0x070018 "bad-block-list-unreadable" BadBlockListUnreadable { inode: InodeNr, block: BlockNr }
        Metadata Damage ask BlockMap
        "the list of bad blocks, {inode}, cannot be read at {block}"
        means "Which blocks are to be avoided is not fully known. The list holds no user data."
        repair "Empty the list and test the device.";
    0x070019 "inodes-per-group-wrong" InodesPerGroupWrong { stored: u32, expected: u32 }
        Metadata Damage ask Superblock
        "the superblock says that a group has {stored} inodes; by the number of all inodes it has \
             {expected}"
        means "Where inodes are follows from how many a group has. The stored number cannot be, or \
             the first group contradicts it; everything was looked at with the other one."
        repair "Store the number that follows from the number of inodes.";
    0x07001A "extent-node-depth-wrong" ExtentNodeDepthWrong {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, stored: u16, expected: u16,
    }
        Metadata Damage preen Extent
        "{inode}: extent {node} (for {logical}) says that {stored} levels are below it; where it \
             hangs, {expected} are"
        means "All that the node leads to is sound, and it is wrong about its own depth alone. Linux \
             refuses to read what it maps (\"Input/output error\"); e2fsck 1.47 finds nothing."
        repair "Store the depth that follows from the root, and the checksum of the node.";

    // Linux refuses these, and e2fsck 1.47 passes over them (docs/linux-refuses.md).
    0x070101 "special-inode-extra-size-bad" SpecialInodeExtraSizeBad { inode: InodeNr, value: u16 }
        Metadata Damage preen Inode
        "{inode}, which the file system itself needs, claims {value} extra bytes, which cannot be"
        means "Linux refuses to load the inode. If it is the journal's, the file system cannot be \
             mounted; e2fsck 1.47 does not look at this field of reserved inodes."
        repair "Store a valid number.";
    0x070102 "special-inode-attribute-block-bad" SpecialInodeAttributeBlockBad {
        inode: InodeNr, block: BlockNr,
    }
        Metadata Damage preen Inode
        "{inode}, which the file system itself needs, names {block} as its attribute block, which \
             cannot be"
        means "Linux refuses to load the inode. If it is the journal's, the file system cannot be \
             mounted; e2fsck 1.47 does not look at this field of reserved inodes."
        repair "Remove the number: such an inode has no attributes.";
    0x070103 "special-inode-attributes-bad" SpecialInodeAttributesBad { inode: InodeNr }
        Metadata Damage preen Inode
        "{inode}, which the file system itself needs, has impossible attributes in the inode"
        means "Newer Linux refuses to load the inode. If it is the journal's, the file system cannot \
             be mounted; e2fsck 1.47 does not look at the attributes of reserved inodes."
        repair "Drop them: such an inode has no attributes.";
    0x070104 "special-inode-flag-bad" SpecialInodeFlagBad { inode: InodeNr, flags: u32 }
        Metadata Damage preen Inode
        "{inode}, which the file system itself needs, has flags {flags:#x}, which Linux refuses there"
        means "As an attribute value, or encrypted, it cannot be the journal, a quota file or the \
             orphan file: Linux does not mount the file system, or not for writing."
        repair "Clear the flags.";
    0x070105 "quota-inode-without-links" QuotaInodeWithoutLinks { kind: &'static str, inode: InodeNr }
        Metadata Damage preen Quota
        "the inode of the {kind} quota file, {inode}, has no link"
        means "Linux takes it for deleted and refuses to mount the file system for writing."
        repair "Set the link count to 1.";
    0x070106 "orphan-file-inode-wrong" OrphanFileInodeWrong { inode: InodeNr, reason: &'static str }
        DataRisk Damage ask Orphan
        "the superblock names {inode} as the orphan file, but {reason}"
        means "Linux refuses to mount the file system, and whoever empties that \"orphan file\" \
             writes over what the inode really holds."
        repair "Look for the real orphan file, or make one; the inode named is left alone.";
    0x070107 "orphan-file-lost" OrphanFileLost { inode: InodeNr }
        Metadata Damage ask Orphan
        "{inode} is an orphan file that neither the superblock nor a directory names"
        means "The superblock lost the number of the orphan file, or names another one."
        repair "Name it in the superblock if no usable one is named there, else release it.";
    0x070108 "orphan-file-too-long" OrphanFileTooLong { inode: InodeNr, blocks: u64 }
        Metadata Damage preen Orphan
        "the orphan file, {inode}, has {blocks} blocks, more than Linux reads"
        means "Newer Linux refuses to mount a file system whose orphan file has more than 512 blocks."
        repair "Make it anew.";
    0x070109 "extent-past-file-limit" ExtentPastFileLimit {
        inode: InodeNr, node: BlockNr, logical: LogicalBlock, block: BlockNr, len: u32,
    }
        DataRisk Damage ask Extent
        "{inode}: an extent of {len} blocks at {logical} reaches past the last block that a file \
             can have (to {block}, in extent {node})"
        means "Logical blocks have 32 bits, so a part of the extent belongs nowhere. Linux refuses to \
             load the inode (\"Structure needs cleaning\")."
        repair "Remove the extent.";
    0x07010A "ea-inode-flag-on-named-file" EaInodeFlagOnNamedFile { inode: InodeNr }
        Metadata Damage preen Xattr
        "{inode} has a name, and a flag that says that it holds an attribute value"
        means "No attribute uses it, and Linux refuses to open it by its name (\"Structure needs \
             cleaning\")."
        repair "Clear the flag.";
    0x07010B "extent-root-depth-bad" ExtentRootDepthBad { inode: InodeNr, stored: u16 }
        Metadata Damage preen Extent
        "{inode} maps nothing, and says that {stored} levels are below its extents"
        means "Linux refuses to load the inode (\"Structure needs cleaning\")."
        repair "Set the depth to zero.";
    0x07010C "extent-tree-beyond-linux" ExtentTreeBeyondLinux { inode: InodeNr, stored: u16 }
        Metadata Damage ask Extent
        "the extent tree of {inode} has depth {stored}; Linux reads no more than 5"
        means "Linux refuses to read the file (\"Structure needs cleaning\"), although all that its \
             tree leads to is sound."
        repair "Build the tree anew, which makes it shallower.";
    0x07010D "journal-device-beside-inode" JournalDeviceBesideInode { inode: InodeNr, device: u32 }
        Metadata Damage preen Journal
        "the superblock names the journal's {inode}, and a journal device ({device:#x}) besides"
        means "Linux refuses to mount a file system with two journals; the inode is the one in use."
        repair "Remove the number of the device.";
    0x07010E "hurd-with-linux-features" HurdWithLinuxFeatures { feature: &'static str }
        Metadata Damage ask Superblock
        "the superblock says that the Hurd made the file system, which has no {feature}"
        means "The field is damaged: with this feature Linux made the file system, and now refuses to \
             mount it."
        repair "Store that Linux made it.";
    0x07010F "journal-bounds-wrong" JournalBoundsWrong {
        inode: InodeNr, first: u32, blocks: u32, expected_first: u32, expected_blocks: u32,
    }
        Metadata Damage preen Journal
        "the journal superblock in {inode} lets the log begin at block {first} of {blocks}; it begins at \
             {expected_first} of {expected_blocks}"
        means "The log would have no room, so Linux refuses to mount the file system. The journal was \
             looked at with the right values, and what it holds is replayed."
        repair "Store the right values.";
    0x070110 "quota-inode-wrong" QuotaInodeWrong {
        kind: &'static str, inode: InodeNr, reason: &'static str,
    }
        DataRisk Damage ask Quota
        "the superblock names {inode} as the {kind} quota file, but {reason}"
        means "Software that writes usage into that \"quota file\", as e2fsck does, writes over what the inode \
             really holds and removes its name. Newer Linux refuses to mount the file system for writing."
        repair "Name the reserved inode, or look for the real quota file; the inode named is left alone.";
    0x070111 "quota-file-lost" QuotaFileLost { inode: InodeNr }
        Metadata Damage ask Quota
        "{inode} is the project quota file, and neither the superblock nor a directory names it"
        means "The superblock lost the number of the file, or names another one."
        repair "Name it in the superblock.";
    0x070112 "mmp-block-wrong" MmpBlockWrong { block: BlockNr, expected: BlockNr }
        DataRisk Fatal ask Mmp
        "the superblock names {block} as the block against multiple mounts, which does not look like it"
        means "Whether another machine uses the file system cannot be found out. Software that writes a clean \
             block there, as e2fsck does, writes over what the block really holds."
        repair "Name the block that a backup superblock knows; if none is known, switch the protection \
             off. The block named is left alone.";
    0x070113 "verity-flag-unsupported" VerityFlagUnsupported { inode: InodeNr }
        Metadata Damage preen Encryption
        "{inode} is marked as protected by fs-verity, but the feature is off"
        means "The mark is wrong: it is only set where the feature is on. Linux refuses to open the file."
        repair "Clear the mark.";
    0x070114 "xattr-name-with-zero" XattrNameWithZero {
        inode: InodeNr, block: BlockNr, offset_bytes: u32,
    }
        Metadata Damage ask Xattr
        "an attribute of {inode} (byte {offset_bytes}) has a name with a zero in it"
        means "Linux refuses to load the inode, or to read any attribute of the block (\"Structure \
             needs cleaning\")."
        repair "Keep the name up to the zero; if nothing is left of it, remove the attribute.";
    0x070115 "xattr-acl-with-name" XattrAclWithName {
        inode: InodeNr, block: BlockNr, offset_bytes: u32,
    }
        Metadata Damage ask Xattr
        "an attribute of {inode} (byte {offset_bytes}) is filed as an access list, but has a name"
        means "An access list has none, so the place is wrong. Linux lists the attribute and refuses to \
             read it (\"Operation not supported\")."
        repair "File it among the attributes of users, where it can be read.";
    0x070116 "default-hash-version-bad" DefaultHashVersionBad { stored: u8 }
        Metadata Damage preen Superblock
        "the superblock names hash {stored} for the indexes of new directories, which does not exist"
        means "Linux refuses to mount the file system. Directories that have an index name their own hash."
        repair "Name the usual one (half MD4).";
    0x070117 "journal-version-too-old" JournalVersionTooOld { inode: InodeNr }
        Metadata Damage preen Journal
        "the journal in {inode} has version 1, and the file system needs features of version 2"
        means "Linux refuses to mount a file system with such a journal if it has the features 64bit, \
             metadata_csum or fast_commit, or if the journal lies on another device."
        repair "Make it a journal of version 2, without features: Linux adds those that it needs.";
    0x070118 "fast-commit-area-too-large" FastCommitAreaTooLarge {
        stored: u32, blocks: u32, expected: u32,
    }
        Metadata Damage preen Journal
        "the journal of {blocks} blocks keeps {stored} of them for fast commits, and so fewer than 1024 \
             for transactions"
        means "The journal does not use them yet, but the file system has the feature, so Linux reserves \
             them when it mounts, and refuses to mount where the rest is too short."
        repair "Keep as many as a new journal would, or switch the feature off in a journal without room.";
    0x070119 "external-journal-without-user" ExternalJournalWithoutUser
        Metadata Remark preen Journal
        "the external journal says that no file system uses it"
        means "Linux refuses to mount the file system: it expects exactly one."
        repair "Store one user, this file system.";
    0x07011A "xattr-list-unreadable" XattrListUnreadable {
        inode: InodeNr, block: BlockNr, offset_bytes: u32,
    }
        Metadata Damage ask Xattr
        "an access list of {inode} (attribute at byte {offset_bytes}) cannot be read"
        means "Its version, length or entries are none that exist. Linux refuses everyone but the owner and \
             root to open the file, and to create anything in a directory whose default list it is \
             (\"Invalid argument\")."
        repair "Put a list in its place that gives nobody more than Linux did: the owner has what the mode \
             says, all others nothing. A default list is removed, as is one without room for that.";
    0x07011B "root-directory-encrypted" RootDirectoryEncrypted { inode: InodeNr }
        Metadata Damage preen Encryption
        "the root directory is marked as encrypted"
        means "Linux never encrypts the root, because lost+found has to be in it; so the mark is wrong. Linux \
             shows its names as if they were encrypted, and nothing can be created."
        repair "Clear the mark.";
    0x07011C "xattr-list-misread" XattrListMisread {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, reason: &'static str,
    }
        Metadata Damage ask Xattr
        "an access list of {inode} (attribute at byte {offset_bytes}) does not mean what it says: {reason}"
        means "Entries are missing, repeated or in an order in which no program can set them. Linux verifies \
             that only when a list is set. When it reads one, it ignores some entries, or refuses access, \
             creation or a change of the mode (\"Input/output error\")."
        repair "Put the list in order and complete it, so that nobody gets more than Linux gave by the old \
             list: an entry that was ignored gives nothing, as does a missing one. If there is no room for \
             that, the list is removed, and only the owner keeps access.";
    0x07011D "encryption-level-unknown" EncryptionLevelUnknown { stored: u8 }
        Metadata Damage preen Superblock
        "the superblock names level {stored} of encryption, which does not exist"
        means "Linux refuses to mount a file system with encryption and another level than 0."
        repair "Set the level to 0.";
    0x07011E "ea-inode-deleted" EaInodeDeleted { inode: InodeNr, value_inode: InodeNr }
        DataRisk Damage ask Xattr
        "{value_inode} holds an attribute value of {inode}, but counts as deleted: it has no links"
        means "The hash proves the value, but Linux answers \"Stale file handle\" when the attribute is read. A repair \
             that frees the inode, as e2fsck's does, loses the value."
        repair "Set its count of links to 1.";
    0x07011F "ea-inode-mode-bad" EaInodeModeBad { inode: InodeNr, value_inode: InodeNr, mode: u16 }
        DataRisk Damage ask Xattr
        "{value_inode} holds an attribute value of {inode}, but has mode {mode:o} and is no regular file"
        means "Hash and size prove the value, so the mode was overwritten. Linux reads the attribute whatever the mode \
             says, as long as it is a type that exists. A repair that believes the mode, as e2fsck's does, loses the \
             value: it takes it for a directory, or removes the inode."
        repair "Make it a regular file, before anything else that was found about it.";
    0x070120 "ea-inode-with-attributes" EaInodeWithAttributes { inode: InodeNr, value_inode: InodeNr }
        DataRisk Damage ask Xattr
        "{value_inode} holds an attribute value of {inode}, but has attributes itself"
        means "Hash and size prove the value. Linux refuses to read it from an inode that has attributes, or whose bytes \
             look like that."
        repair "Drop the attributes of the inode with the value; the value stays.";
    0x070121 "xattr-value-unreadable" XattrValueUnreadable {
        inode: InodeNr, block: BlockNr, offset_bytes: u32, value_inode: InodeNr, name: Name, reason: &'static str,
    }
        DataRisk Damage ask Xattr
        "attribute {name} of {inode} cannot be read: its value lies in {value_inode}, and {reason}"
        means "Such a value has a hash, which the attribute and the inode with the value remember. Linux answers \
             \"Structure needs cleaning\" when the attribute is read, and reads the other attributes of the file. \
             e2fsck does not look at the bytes of values."
        repair "Repair the inode with the value first. If the value still cannot be read, remove the attribute and keep the \
             others; what is left of the value goes to lost+found. For an access list, one that gives nobody more is put \
             in its place.";
    0x070122 "inode-size-beyond-linux" InodeSizeBeyondLinux {
        inode: InodeNr, stored: u64, most: u64, expected: u64,
    }
        Metadata Damage preen Inode
        "{inode} has size {stored}, and Linux opens no file of more than {most} bytes here; its \
             blocks say {expected}"
        means "The bytes behind the blocks are zeroes that nobody can write. Linux refuses to load the \
             inode (\"Structure needs cleaning\")."
        repair "Set the size to fit the blocks.";

    0x070123 "journal-ends-early" JournalEndsEarly { sequence: u32, last: u32 }
        DataRisk Damage ask Journal
        "the journal seems to end before transaction {sequence}, but transaction {last} was committed"
        means "Blocks of the log are damaged. Linux and e2fsck take the place for the end, and say nothing: they write the copies \
             before it over blocks that may be newer, and what was committed from there on is lost where it was not written yet."
        repair "Take the best of the states that the log leaves (damaged-log-weighed), then check everything. Never unattended.";
    0x070124 "damaged-log-otherwise" DamagedLogOtherwise {
        log: &'static str, inode: InodeNr, state: &'static str, inodes: u64, older: u64,
    }
        DataRisk Remark ask Journal
        "the log {log} is damaged; if {state}, {inodes} inodes are in use, and {older} inodes are older than in \
             another state, or missing"
        means "A state that was checked and that is worse than the one that is taken (damaged-log-weighed)."
        repair "None: the findings about the damage decide whether the state is written.";
    0x070125 "external-journal-superblock-corrupt" ExternalJournalSuperblockCorrupt { reason: &'static str }
        DataRisk Damage preen Journal
        "the superblock of the external journal is unusable: {reason}"
        means "Nothing can be replayed. While the file system asks for recovery, the log may hold newer blocks than the file \
             system, which is not changed then. e2fsck writes an empty journal superblock, and what the log held is lost."
        repair "None. Recreate the journal with mke2fs -O journal_dev and the same UUID; what it held is lost.";
    0x070126 "journal-superblock-bit" JournalSuperblockBit {
        log: &'static str, inode: InodeNr, byte: u32, bit: u32,
    }
        DataRisk Damage ask Journal
        "bit {bit} of byte {byte:#x} of the journal superblock {log} is wrong, as its checksum tells"
        means "The log was read with the right bit, and nothing is missing. Linux does not mount the file system, and e2fsck drops the \
             whole log, unattended, too: what was not written to its place yet is lost then."
        repair "Replay the log, and write the superblock with the right bit. Never unattended, as with any damaged log.";
    0x070127 "empty-journal-superblock-bit" EmptyJournalSuperblockBit {
        log: &'static str, inode: InodeNr, byte: u32, bit: u32,
    }
        Metadata Damage preen Journal
        "bit {bit} of byte {byte:#x} of the journal superblock {log} is wrong, as its checksum tells; the log is empty"
        means "Nothing is missing, but Linux does not mount the file system."
        repair "Flip the bit back.";
    0x070128 "journal-superblock-lost" JournalSuperblockLost {
        log: &'static str, inode: InodeNr, reason: &'static str,
    }
        DataRisk Damage ask Journal
        "the journal superblock {log} is lost, and the log is in use: {reason}"
        means "Linux does not mount the file system, and e2fsck drops the whole log, unattended, too: blocks that were not written to their \
             places yet are lost then."
        repair "Take the transactions that are found in the log by their numbers and checksums, or none, whichever leaves more \
             (damaged-log-weighed), and write a new superblock. Never unattended.";
    0x070130 "blocks-past-agreed-size" BlocksPastAgreedSize {
        inode: InodeNr, size: u64, sectors: u64, first: LogicalBlock,
    }
        DataRisk Damage ask Inode
        "{inode} has size {size} and {sectors} sectors, which fit each other; its map leads to more \
             blocks, from {first} on"
        means "The blocks below the size and the nodes that lead to them make exactly the number of sectors, so the \
             inode says twice where the file ends. A node that leads further is of another time, as after a lost write: its \
             blocks may be free, or belong to other files, and their bytes are not the file's; or the write of the inode was lost."
        repair "Where the bitmaps have all of the blocks in use, and nobody else claims one, the node is newer: raise the size. \
             Elsewhere drop the blocks past the size.";
    0x070131 "symlink-immutable-flag" SymlinkImmutableFlag { inode: InodeNr, flags: u32 }
        Metadata Damage preen Inode
        "{inode} is a symlink with the immutable or append-only flag ({flags:#x})"
        means "Linux refuses to load such a link (\"Structure needs cleaning\"); no program can set the flags."
        repair "Clear the flags. The target stays.";
    0x070132 "primary-superblock-uuid-wrong" PrimarySuperblockUuidWrong
        Metadata Damage ask Superblock
        "the primary superblock has another UUID than the descriptors and the journal"
        means "The checksums of the descriptors begin with the UUID, and none fits the one that is stored. The journal holds the \
             right one, but Linux judges the descriptors before it replays the journal, and does not mount."
        repair "Replay the journal, which brings the right superblock back.";
    0x070133 "damaged-log-weighed" DamagedLogWeighed {
        log: &'static str, inode: InodeNr, taken: &'static str, inodes: u64, older: u64,
    }
        DataRisk Remark ask Journal
        "the log {log} is damaged, and {taken}: {inodes} inodes are in use then, and {older} inodes are older than in \
             another state, or missing"
        means "Blocks are written to their places long before the log lets go of them, so those on the disk may be newer than their \
             copies before the damage, or not be written yet. Each state was checked, and the times of inodes were compared. A revoke \
             block that is lost may let an old copy go over a block that is used again: nothing in the log tells."
        repair "None: the findings about the damage decide whether the state is written.";

    0x070200 "descriptor-size-wrong" DescriptorSizeWrong { stored: u16, expected: u16 }
        Metadata Damage preen Superblock
        "the superblock says that a group descriptor has {stored} bytes; it should say {expected}"
        means "Where descriptors are follows from their size. The stored one cannot be, and by the other \
             one the descriptors make sense; without the feature 64bit it says nothing, and is 0."
        repair "Store the size by which the descriptors make sense.";
    0x070201 "superblock-field-contradicted" SuperblockFieldContradicted {
        field: &'static str, stored: u64, expected: u64,
    }
        DataRisk Damage ask Superblock
        "superblock field {field} is {stored}; by what lies on the disk it is {expected}"
        means "Files or metadata are where, by this field, nothing of theirs can be. Software that believes it, as \
             e2fsck does without a backup superblock, empties inodes or writes over blocks in use. Everything \
             was looked at with the other value."
        repair "Store the value by which what lies on the disk makes sense.";
    0x070202 "superblock-field-doubtful" SuperblockFieldDoubtful {
        field: &'static str, stored: u64, expected: u64,
    }
        Metadata Remark ask Superblock
        "superblock field {field} is {stored:#x}; by the backups and by what lies on the disk it is {expected:#x}"
        means "A damaged bit: tools write such a field to the backups, too, and no inode uses what it announces, or no metadata lie \
             where it says. Nothing is lost by it, but depending on the field programs refuse to read or to write the file system \
             without need, or place new data badly."
        repair "Store the value of the backups in the primary superblock.";

    0x070300 "native-identity-wrong" NativeIdentityWrong { reason: &'static str }
        Metadata Damage preen Superblock
        "the identity of the native file system in the superblock is wrong: {reason}"
        means "The private bytes of the superblock are damaged. For ext4 the file system is whole, but Floe \
             uses no metadata regions without them."
        repair "Take the identity from a backup superblock, or compute it from the records of the lots.";
    0x070301 "lot-record-wrong" LotRecordWrong { group: GroupNr, reason: &'static str }
        Metadata Damage preen Group
        "{group} of the native file system has no valid record of its lot: {reason}"
        means "Floe uses no metadata region in a lot whose record it cannot believe. For ext4 the file \
             system is whole."
        repair "Take the record from another group of the lot or from a backup of the descriptors, or compute it \
             from the layout.";
    0x070302 "reservation-file-missing" ReservationFileMissing { group: GroupNr, inode: InodeNr }
        Metadata Damage ask Group
        "the reservation file of the lot of {group}, {inode}, has no name in /.cubes/c0"
        means "Nothing keeps other programs from putting data into the metadata region of the lot."
        repair "Make a new reservation file.";
    0x070303 "reservation-file-wrong" ReservationFileWrong {
        inode: InodeNr, group: GroupNr, reason: &'static str,
    }
        Metadata Damage ask Inode
        "{inode}, the reservation file of the lot of {group}, is wrong: {reason}"
        means "A reservation file holds free blocks of a metadata region and no data. Floe does not use a \
             region whose file is something else."
        repair "Empty the file, and reserve the free blocks of the region again.";
    0x070304 "region-not-reserved" RegionNotReserved {
        inode: InodeNr, group: GroupNr, blocks: u64,
    }
        Metadata Damage preen Inode
        "{inode}, the reservation file of the lot of {group}, lacks {blocks} blocks of the metadata region"
        means "Other programs may put data into these blocks."
        repair "Add the free blocks of the region to the file.";
    0x070305 "backpointers-wrong" BackpointersWrong { inode: InodeNr, inodes: u64 }
        Cosmetic Remark preen Inode
        "{inodes} inodes name another place than the directories that name them; {inode} is the first"
        means "Linux does not know the backpointers of native file systems, so they are out of date after a file was \
             renamed by it. They serve only to find the place of a file whose directory is lost."
        repair "Store the name of each inode in it again.";

    0x070306 "cube-copy-damaged" CubeCopyDamaged { cube: u32, copy: u32, reason: &'static str }
        Metadata Damage preen Superblock
        "copy {copy} of the sub-superblock of cube {cube} is damaged: {reason}"
        means "Each cube has two copies of its sub-superblock. The other one is good, so nothing is lost yet."
        repair "Write the copy again, from the other one.";
    0x070307 "cube-superblock-lost" CubeSuperblockLost { cube: u32, group: GroupNr }
        Metadata Damage ask Superblock
        "cube {cube}, which owns the lot of {group}, has no valid sub-superblock"
        means "Both copies are damaged or missing: limit, policies and directory of the cube are unknown. Its files \
             are whole."
        repair "Make a new sub-superblock: lots by their records, the directory by the tree. Where no directory leads \
             into the cube, its lots belong to no cube any more.";
    0x070308 "cube-top-wrong" CubeTopWrong { cube: u32, inode: InodeNr, reason: &'static str }
        Metadata Damage ask Superblock
        "the sub-superblock of cube {cube} names {inode} as its directory, but {reason}"
        means "Floe finds the cube by this number. The files of the cube are whole."
        repair "Store the directory that the tree says. Where no directory leads into the cube, its lots belong to no \
             cube any more.";
    0x070309 "cube-without-lot" CubeWithoutLot { cube: u32 }
        Metadata Damage ask Superblock
        "no lot belongs to cube {cube}, which has a sub-superblock"
        means "The records of its lots were lost, or the cube was removed in part."
        repair "Give the lots in its list to it again, as far as no other cube has them; without such a lot, remove the \
             sub-superblock.";
    0x07030a "cube-hint-old" CubeHintOld { cube: u32, what: &'static str }
        Cosmetic Remark ask Superblock
        "the {what} in the sub-superblock of cube {cube} is out of date"
        means "It is a hint: after a rename of a directory above the cube the path leads elsewhere, and the list may name a \
             lot that is not the cube's. Records of lots and the tree decide."
        repair "None needed.";
    0x07030b "cube-failure-recorded" CubeFailureRecorded { cube: u32 }
        Metadata Damage ask Superblock
        "the sub-superblock of cube {cube} records a failure that no repair has cleared"
        means "A mount met damage in the cube, or a fault of its own there, and recorded that. Other findings tell whether \
             the cube is damaged."
        repair "Clear the record.";
    0x07030c "cube-entangled-blocks" CubeEntangledBlocks {
        inode: InodeNr, block: BlockNr, blocks: u64, cube: u32, other: u32,
    }
        Cosmetic Remark ask Inode
        "{inode} lies in cube {cube}, and {blocks} of its blocks from {block} on in cube {other}"
        means "Another system, which does not know cubes, put them there. The file is whole, but takes space of the \
             other cube."
        repair "Move the blocks back, as the next mount by Floe would. Where there is no room, record that the cubes fail together.";
    0x07030d "cube-entangled-name" CubeEntangledName {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, cube: u32, other: u32,
    }
        Cosmetic Remark ask Dirent
        "{dir} lies in cube {cube}, and {inode_named}, which it names, in cube {other}"
        means "Another system, which does not know cubes, put the inode there. The file is whole, but takes space of the \
             other cube, and both cubes fail together."
        repair "Give the inode another number, in the cube of its names. Where those are in several cubes, record that the cubes fail together.";
    0x07030e "cube-name-outside" CubeNameOutside {
        dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, inode_named: InodeNr, cube: u32, other: u32,
    }
        Metadata Damage ask Dirent
        "{dir} of cube {cube} has a name that leads to {inode_named} of cube {other}"
        means "No other system has written since Floe did, and the inode does not say that this is its name: the name is \
             wrong. Mounts do not follow it, so that nothing of the other cube is read or changed."
        repair "Remove the name. An inode that has no other one is moved to lost+found of its own cube.";
    0x07030f "cube-blocks-outside" CubeBlocksOutside {
        inode: InodeNr, block: BlockNr, blocks: u64, cube: u32, other: u32,
    }
        DataRisk Damage ask Inode
        "{inode} of cube {cube} claims {blocks} blocks from {block} on, which belong to cube {other}"
        means "No other system has written since Floe did, so the blocks are not those of the file. Mounts neither read nor \
             change them."
        repair "Give the file blocks of its own cube with zeroes instead: content of the other cube does not come into it. The \
             other cube keeps its blocks as they are.";
    0x070310 "cube-orphan-outside" CubeOrphanOutside { cube: u32, inode: InodeNr }
        Metadata Damage ask Inode
        "the list of orphans of cube {cube} names {inode}, which belongs to another cube"
        means "Software that deletes orphans would delete or cut a file of another cube. Mounts leave it alone."
        repair "Remove the entry.";
    0x070311 "cube-journal-damaged" CubeJournalDamaged {
        cube: u32, inode: InodeNr, reason: &'static str,
    }
        DataRisk Damage ask Journal
        "the journal of cube {cube}, {inode}, is damaged: {reason}"
        means "Changes of the cube that were durable in it alone may be lost, or it is not known which files of it were to be \
             deleted. A mount serves the others, and this one only for reading, or not at all where its log is damaged in its middle; \
             it is refused where other logs have parts of its changes."
        repair "Replay the transactions before the damage, and empty the journal; empty a damaged list of orphans. Where its \
             file is lost, the cube has no journal of its own any more.";
    0x070312 "reservation-file-unnamed" ReservationFileUnnamed { group: GroupNr, inode: InodeNr }
        Metadata Damage ask Group
        "the name of the reservation file of the lot of {group}, {inode}, leads elsewhere or is missing"
        means "Floe finds the file by its name, and does not use the metadata region without it. The file is whole."
        repair "Let the name lead to the file.";
    0x070313 "own-directory-missing" OwnDirectoryMissing { path: &'static str }
        Metadata Damage ask Superblock
        "the directory {path} of the native file system is missing"
        means "It names the files in which Floe keeps what other programs must not touch: reservations of metadata regions, \
             sub-superblocks and journals of cubes. Without it cubes cannot be created, and other programs may put data into \
             the regions. A directory of somebody else that has the name is not taken for it."
        repair "Give the directory its name back, or make a new one, and give its files their names back. A directory of \
             somebody else in its place must be renamed first.";

    0x070400 "indirect-header-wrong" IndirectHeaderWrong {
        inode: InodeNr, block: BlockNr, level: u8, named: InodeNr, stored: u32,
    }
        Metadata Damage preen BlockMap
        "{inode}: its indirect {block} of level {level} says that it is of level {stored} and belongs to {named}"
        means "Each indirect block of a rext3 file system names its inode and its level. Either they are damaged, or the pointer \
             that leads here. No other program reads the header."
        repair "Store the inode and the level of the map that leads to the block; where others claim it, too, in a new block.";
}
