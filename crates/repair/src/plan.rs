//! Maps each finding to the edits that repair it. A pure function without a catch-all arm, so that
//! a new problem does not compile until its repair is defined.
//!
//! The repairs follow the catalogue (`repair` in `check/problem/table.rs`).

use std::collections::BTreeMap;

use floe_check::Problem;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::jbd2;
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use crate::edit::{
    AttributeBlockEdit, CubeEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, InodeEdit,
    JournalEdit, MapEdit, OrphanEdit, OrphanFileEdit, ReservationEdit, SuperblockEdit, TreeEdit,
};

/// The repair of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// These edits, at least one.
    Edits(Vec<Edit>),
    /// The repair of another finding of the same examination covers it.
    WithAnother,
    /// A remark on the file system that needs no repair.
    Remark,
    /// Updated at the end, once the file system is clean.
    AtTheEnd,
    /// No repair is possible, for this reason.
    Impossible(&'static str),
}

/// Edits, each with the first finding that requires it.
pub(crate) type Wanted = BTreeMap<Edit, Option<Problem>>;

/// Regular file without permissions: the mode that e2fsck gives internal files.
const MODE_REGULAR: u16 = 0o100_000;
/// Attribute flags that device, socket and FIFO inodes must not have.
const SPECIAL_ATTRIBUTES: u32 = InodeFlags::IMMUTABLE.bits() | InodeFlags::APPEND.bits();
const MAPPED: u32 = InodeFlags::EXTENTS.bits() | InodeFlags::INLINE_DATA.bits();
/// Value for `s_min_extra_isize` and `s_want_extra_isize`: room for all known fields.
const EXTRA_ISIZE: u16 = 32;

fn one(edit: Edit) -> Plan {
    Plan::Edits(vec![edit])
}

fn superblock(edit: SuperblockEdit) -> Plan {
    one(Edit::Superblock(edit))
}

fn group(group: GroupNr, edit: GroupEdit) -> Plan {
    one(Edit::Group { group, edit })
}

fn reservation(group: GroupNr, edit: ReservationEdit) -> Plan {
    one(Edit::Reservation { group, edit })
}

fn journal(edit: JournalEdit) -> Plan {
    one(Edit::Journal(edit))
}

fn inode(inode: InodeNr, edit: InodeEdit) -> Plan {
    one(Edit::Inode { inode, edit })
}

fn map(inode: InodeNr, edit: MapEdit) -> Plan {
    one(Edit::Map { inode, edit })
}

fn directory(dir: InodeNr, logical: LogicalBlock, edit: DirectoryEdit) -> Plan {
    one(Edit::Directory { dir, logical, edit })
}

fn entry(dir: InodeNr, logical: LogicalBlock, offset_bytes: u32, edit: EntryEdit) -> Plan {
    one(Edit::Entry { dir, logical, offset_bytes, edit })
}

fn clear_flags(of: InodeNr, flags: InodeFlags) -> Plan {
    inode(of, InodeEdit::ClearFlags(flags.bits()))
}

/// Drops the index and rebuilds it.
fn rebuild(dir: InodeNr) -> Plan {
    one(Edit::RebuildDirectory { dir })
}

/// The plan for a finding.
#[allow(clippy::too_many_lines)] // one arm a problem
#[allow(clippy::match_same_arms)] // in the order of the table
pub fn plan(problem: &Problem) -> Plan {
    use Problem as P;
    match *problem {
        P::GroupBlockBitmapOutOfRange { group: nr, .. } => group(nr, GroupEdit::PlaceBlockBitmap),
        P::GroupInodeBitmapOutOfRange { group: nr, .. } => group(nr, GroupEdit::PlaceInodeBitmap),
        P::GroupInodeTableOutOfRange { group: nr, .. } => group(nr, GroupEdit::PlaceInodeTable),
        P::SuperblockUnusable => Plan::Impossible("no superblock describes the file system"),
        P::FilesystemExceedsDevice { .. } => {
            Plan::Impossible("the part past the end of the device cannot be repaired")
        }
        P::FirstDataBlockWrong { .. } | P::SuperblockFieldOutOfRange { .. } => {
            Plan::Impossible("this superblock locates nothing; use a backup (-b)")
        }
        P::UuidMissing => superblock(SuperblockEdit::RandomUuid),
        P::InodeCountMismatch { expected, .. } => match u32::try_from(expected) {
            Ok(count) => superblock(SuperblockEdit::InodesCount(count)),
            Err(_) => Plan::Impossible("inode numbers have 32 bits"),
        },
        P::DescriptorSizeWrong { expected, .. } => {
            superblock(SuperblockEdit::DescriptorSize(expected))
        }
        P::InodesPerGroupWrong { expected, .. } => {
            superblock(SuperblockEdit::InodesPerGroup(expected))
        }
        P::SuperblockFieldContradicted { field, .. } | P::SuperblockFieldDoubtful { field, .. } => {
            superblock(SuperblockEdit::AsExamined(field))
        }
        P::HurdFiletypeFeature => superblock(SuperblockEdit::DropFiletype),
        P::JournalInodeInvalid { .. } => journal(JournalEdit::Drop),
        P::ExternalJournalMultipleUsers { .. }
        | P::ExternalJournalNotFound { .. }
        | P::ExternalJournalNotAJournalDevice
        | P::ExternalJournalUuidMismatch => {
            Plan::Impossible("the journal device of the file system must be given (-j)")
        }
        P::ExternalJournalSuperblockCorrupt { .. } => {
            Plan::Impossible("only mke2fs can recreate an external journal")
        }
        P::JournalSuperblockCorrupt { .. } => journal(JournalEdit::Reset),
        P::JournalSuperblockBit { inode, .. } | P::EmptyJournalSuperblockBit { inode, .. } => {
            journal(JournalEdit::FlipBack(inode))
        }
        P::JournalBoundsWrong { expected_first: first, expected_blocks: blocks, .. } => {
            journal(JournalEdit::Bounds { first, blocks })
        }
        P::JournalPresentWithoutFeature { .. } => journal(JournalEdit::Forget),
        P::NeedsRecoveryWithoutJournal => journal(JournalEdit::ClearNeedsRecovery),
        P::JournalHasDataWithoutNeedsRecovery { .. } => journal(JournalEdit::Replay),
        P::RevisionZeroWithFeatures | P::RevisionZeroWithLargeFiles => {
            superblock(SuperblockEdit::Revision1)
        }
        P::OrphanInodeProcessed { inode, .. } => one(Edit::Orphans(OrphanEdit::Finish(inode))),
        P::OrphanListHeadInvalid { .. } | P::OrphanListNextInvalid { .. } => {
            one(Edit::Orphans(OrphanEdit::Empty))
        }
        P::JournalUnknownRocompatFeature { .. }
        | P::JournalUnknownIncompatFeature { .. }
        | P::JournalVersionUnknown { .. } => {
            Plan::Impossible("only a newer tool can read the journal")
        }
        P::JournalFileVisible { ref name, .. } => journal(JournalEdit::Hide(name.clone())),
        P::JournalVersionTooOld { .. } => journal(JournalEdit::Version2),
        P::FastCommitAreaTooLarge { expected: 0, .. } => superblock(SuperblockEdit::DropFastCommit),
        P::FastCommitAreaTooLarge { expected, .. } => journal(JournalEdit::FastCommits(expected)),
        P::ExternalJournalWithoutUser => journal(JournalEdit::OneUser),
        P::JournalStaleV2Fields { version: jbd2::SUPERBLOCK_V2, .. } => {
            journal(JournalEdit::OneUser)
        }
        P::JournalStaleV2Fields { .. } => journal(JournalEdit::ZeroStaleFields),
        P::JournalInodeBackupStale { .. } => journal(JournalEdit::BackUpMap),
        P::ReservedGdtWithoutResizeInode { .. } => {
            superblock(SuperblockEdit::NoReservedDescriptors)
        }
        P::ResizeInodeLeftover { inode: of } => inode(of, InodeEdit::Zero),
        P::ResizeInodeInvalid { .. } => one(Edit::RecreateResizeInode),
        P::LastMountTimeInFuture { .. } | P::LastMountTimeSlightlyAhead { .. } => {
            superblock(SuperblockEdit::MountTimeNow)
        }
        P::LastWriteTimeInFuture { .. } | P::LastWriteTimeSlightlyAhead { .. } => {
            superblock(SuperblockEdit::WriteTimeNow)
        }
        P::DirhashSignednessUnset => superblock(SuperblockEdit::HashSignedness),
        P::GroupDescriptorChecksumBad { group: nr, .. } => group(nr, GroupEdit::Distrust),
        P::GroupUninitWithoutChecksumFeature { group: nr, .. } => group(nr, GroupEdit::ClearUninit),
        P::GroupItableUnusedTooLarge { group: nr, .. } => group(nr, GroupEdit::ItableUnusedZero),
        P::LastGroupBlockUninit { group: nr } => group(nr, GroupEdit::ClearBlockUninit),
        P::JournalTransactionCorrupt { .. }
        | P::JournalEndsEarly { .. }
        | P::JournalSuperblockLost { .. } => journal(JournalEdit::LoseTransactions),
        P::FastCommitCorrupt { .. } => journal(JournalEdit::LoseFastCommits),
        P::DamagedLogWeighed { .. } | P::DamagedLogOtherwise { .. } => Plan::Remark,
        P::TestFsFlagSet => superblock(SuperblockEdit::ClearTestFlag),
        P::QuotaInodeNotReserved { kind, .. } => superblock(SuperblockEdit::MoveQuotaInode(kind)),
        P::MmpBlockOutOfRange { .. } => superblock(SuperblockEdit::DropMmp),
        P::MmpMagicBad { .. } | P::MmpChecksumBad { .. } => one(Edit::CleanMmp),
        // The replay of the journal has mended it.
        P::PrimarySuperblockUuidWrong => Plan::Remark,
        P::PrimarySuperblockOpenFailed { .. }
        | P::GroupDescriptorsInsane { .. }
        | P::SuperblockChecksumBad { .. } => superblock(SuperblockEdit::PrimaryFromBackup),
        P::GdtCsumAndMetadataCsumBothSet => superblock(SuperblockEdit::DropGroupChecksums),
        P::Bits64bitWithoutExtents => {
            superblock(SuperblockEdit::SetIncompat(Incompat::EXTENTS.bits()))
        }
        P::FirstMetaBgTooBig { .. } => superblock(SuperblockEdit::DropMetaBg),
        P::ExternalJournalChecksumBad { .. } => journal(JournalEdit::ExternalChecksum),
        P::CsumSeedWithoutMetadataCsum => superblock(SuperblockEdit::DropChecksumSeed),
        P::MinExtraIsizeBad { .. } => superblock(SuperblockEdit::MinExtraIsize(EXTRA_ISIZE)),
        P::DefaultHashVersionBad { .. } => superblock(SuperblockEdit::DefaultHash),
        P::EncryptionLevelUnknown { .. } => superblock(SuperblockEdit::NoEncryptionLevel),
        P::WantExtraIsizeBad { .. } => superblock(SuperblockEdit::WantExtraIsize(EXTRA_ISIZE)),
        P::QuotaInodeNumberInvalid { kind, .. } => superblock(SuperblockEdit::MendQuotaInode(kind)),
        P::ResizeInodeWithMetaBg => superblock(SuperblockEdit::DropResizeInodeFeature),
        P::OrphanFileHoleInRecovery { .. } | P::OrphanFileSizeUnalignedInRecovery { .. } => {
            one(Edit::OrphanFile(OrphanFileEdit::Recreate))
        }
        P::OrphanFileBlockMagicBad { .. } | P::OrphanFileBlockChecksumBad { .. } => {
            one(Edit::OrphanFile(OrphanFileEdit::Clean))
        }

        P::JournalDeviceBesideInode { .. } => superblock(SuperblockEdit::NoJournalDevice),
        P::HurdWithLinuxFeatures { .. } => superblock(SuperblockEdit::MadeByLinux),
        P::OrphanFileInodeWrong { .. } => one(Edit::OrphanFile(OrphanFileEdit::Forget)),
        P::OrphanFileLost { inode } => one(Edit::OrphanFile(OrphanFileEdit::Adopt(inode))),
        P::MmpBlockWrong { expected: BlockNr(0), .. } => superblock(SuperblockEdit::DropMmp),
        P::MmpBlockWrong { expected, .. } => superblock(SuperblockEdit::MmpBlock(expected)),
        P::QuotaInodeWrong { kind, .. } => superblock(SuperblockEdit::MendQuotaInode(kind)),
        P::QuotaFileLost { inode } => superblock(SuperblockEdit::ProjectQuotaInode(inode)),
        P::OrphanFileTooLong { .. } => one(Edit::OrphanFile(OrphanFileEdit::Recreate)),
        P::SpecialInodeExtraSizeBad { inode: of, .. } => inode(of, InodeEdit::ExtraIsize),
        P::SpecialInodeAttributeBlockBad { inode: of, .. } => {
            inode(of, InodeEdit::DropAttributeBlock)
        }
        P::SpecialInodeAttributesBad { inode: of } => inode(of, InodeEdit::DropOwnAttributes),
        P::SpecialInodeFlagBad { inode: of, flags } => inode(of, InodeEdit::ClearFlags(flags)),
        P::QuotaInodeWithoutLinks { inode, .. } => one(Edit::LinkCount { inode, links: 1 }),
        P::ExtentPastFileLimit { inode: of, node, logical, block, .. } => {
            map(of, MapEdit::RemoveExtent { node, logical, block: Some(block) })
        }
        P::EaInodeFlagOnNamedFile { inode: of } => clear_flags(of, InodeFlags::EA_INODE),
        P::ExtentRootDepthBad { inode, .. } | P::ExtentTreeBeyondLinux { inode, .. } => {
            one(Edit::RebuildExtents { inode })
        }

        P::RootInodeNotDirectory { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::RootInodeDtimeSet { inode: of, .. } | P::InodeInUseDtimeSet { inode: of, .. } => {
            inode(of, InodeEdit::DtimeZero)
        }
        P::ReservedInodeModeBad { inode: of, .. } => inode(of, InodeEdit::Mode(0)),
        P::DeletedInodeDtimeMissing { inode: of } => inode(of, InodeEdit::DtimeNow),
        P::DirectoryWithoutBlocks { inode: of } => inode(of, InodeEdit::Clear),
        P::GroupBlockBitmapOverlap { group: nr, .. }
        | P::GroupBlockBitmapOnBadBlock { group: nr, .. } => group(nr, GroupEdit::MoveBlockBitmap),
        P::GroupInodeBitmapOverlap { group: nr, .. }
        | P::GroupInodeBitmapOnBadBlock { group: nr, .. } => group(nr, GroupEdit::MoveInodeBitmap),
        P::GroupInodeTableOverlap { group: nr, .. } => group(nr, GroupEdit::MoveInodeTable),
        P::InodeSizeBeyondLinux { expected, most, .. } if expected > most => Plan::Impossible(
            "it has blocks past the largest file that Linux opens; `floe cp` copies it",
        ),
        P::BlocksPastAgreedSize { inode: of, first, .. } => map(of, MapEdit::CutAt { first }),
        P::InodeSizeWrong { inode: of, expected, .. }
        | P::InodeSizeBeyondLinux { inode: of, expected, .. } => {
            inode(of, InodeEdit::Size(expected))
        }
        P::InodeBlockCountWrong { inode: of, counted, .. } => {
            inode(of, InodeEdit::Sectors(counted))
        }
        P::BlockMapBlockOutOfRange { inode: of, logical, block, level } => {
            map(of, MapEdit::ZeroPointer { logical, level, block })
        }
        P::BlockMapTooManyBadBlocks { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::BadblocksInodeBlockOutOfRange { inode: of, logical, block } => {
            map(of, MapEdit::ZeroPointer { logical, level: 0, block })
        }
        P::BadblocksInodeIndirectBlockBad { inode: of, block }
        | P::BadblocksInodeIndirectOnMetadata { inode: of, block } => {
            map(of, MapEdit::ZeroPointer { logical: LogicalBlock(0), level: u8::MAX, block })
        }
        P::PrimarySuperblockOnBadBlock { block }
        | P::PrimaryDescriptorsOnBadBlock { block, .. } => one(Edit::NotBad { block }),
        P::BackupSuperblockOnBadBlock { .. }
        | P::BackupDescriptorsOnBadBlock { .. }
        | P::BadBlockOwnerUnknown { .. } => Plan::Remark,
        P::InodeBlockWalkFailed { inode: of, logical, block, level } => {
            map(of, MapEdit::ZeroPointer { logical, level, block })
        }
        P::ImagicFlagUnsupported { inode: of } => clear_flags(of, InodeFlags::IMAGIC),
        P::SpecialFileImmutableFlag { inode: of, .. }
        | P::SymlinkImmutableFlag { inode: of, .. } => {
            inode(of, InodeEdit::ClearFlags(SPECIAL_ATTRIBUTES))
        }
        P::SpecialFileSizeNonzero { inode: of, .. } => inode(of, InodeEdit::Size(0)),
        P::JournalInodeLeftover { inode: of }
        | P::QuotaInodeLeftover { inode: of }
        | P::OrphanFileInodeLeftover { inode: of } => inode(of, InodeEdit::Zero),
        P::JournalInodeNotRegular { inode: of, .. }
        | P::QuotaInodeNotRegular { inode: of, .. }
        | P::OrphanFileNotRegular { inode: of, .. } => inode(of, InodeEdit::Mode(MODE_REGULAR)),
        P::InodeDtimeLooksLikeOrphanLink { inode: of, .. } => inode(of, InodeEdit::SettleDtime),
        P::XattrBlockUnreadable { inode: of, .. }
        | P::XattrBlockMagicBad { inode: of, .. }
        | P::XattrBlockCountBad { inode: of, .. }
        | P::XattrBlockOverlap { inode: of, .. }
        | P::XattrBlockNameBad { inode: of, .. }
        | P::XattrBlockValueBad { inode: of, .. } => inode(of, InodeEdit::DropAttributeBlock),
        P::XattrBlockRefcountWrong { block, counted, .. } => {
            one(Edit::AttributeBlock { block, edit: AttributeBlockEdit::References(counted) })
        }
        P::DirectoryTooBig { inode: of, logical, block } => Plan::Edits(vec![
            // Only the edit that matches the kind of map has an effect.
            Edit::Map { inode: of, edit: MapEdit::ZeroPointer { logical, level: 0, block } },
        ]),
        P::FileTooBig { inode: of, logical, block }
        | P::SymlinkTooBig { inode: of, logical, block } => {
            map(of, MapEdit::ZeroPointer { logical, level: 0, block })
        }
        P::IndexFlagWithoutDirIndex { inode: of } | P::IndexFlagOnNonDirectory { inode: of } => {
            clear_flags(of, InodeFlags::INDEX)
        }
        P::HtreeRootInvalid { inode: of, .. }
        | P::HtreeHashVersionUnknown { inode: of, .. }
        | P::HtreeIncompatFlag { inode: of, .. }
        | P::HtreeTooDeep { inode: of, .. }
        | P::HtreeSiphashRequired { inode: of, .. }
        | P::HtreeSiphashNotAllowed { inode: of } => rebuild(of),
        P::InodeExtraIsizeBad { inode: of, .. } => inode(of, InodeEdit::ExtraIsize),
        // Block 0 stands for the inode itself.
        P::XattrValueSizeBad { inode: of, block, .. }
        | P::XattrHashBad { inode: of, block, .. }
        | P::XattrValueUnreadable { inode: of, block, .. }
        | P::XattrEaInodeNumberBad { inode: of, block, .. } => inode(
            of,
            if block.0 == 0 { InodeEdit::DropOwnAttributes } else { InodeEdit::DropAttributeBlock },
        ),
        P::InodeIsReallyDirectory { inode: of, .. } => inode(of, InodeEdit::BecomeDirectory),
        P::ExtentTreeWalkFailed { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::ExtentStartOutOfRange { inode: of, node, logical, block }
        | P::ExtentsOutOfOrder { inode: of, node, logical, block }
        | P::ExtentNodeHeaderCorrupt { inode: of, node, logical, block, .. }
        | P::ExtentLengthZero { inode: of, node, logical, block }
        | P::ExtentEndOutOfRange { inode: of, node, logical, block, .. }
        | P::ExtentOverlapsPrevious { inode: of, node, logical, block, .. } => {
            map(of, MapEdit::RemoveExtent { node, logical, block: Some(block) })
        }
        P::ExtentPastParentRange { inode: of, node, logical, .. } => {
            map(of, MapEdit::RemoveExtent { node, logical, block: None })
        }
        P::ExtentsFlagUnsupported { inode: of } => inode(of, InodeEdit::Clear),
        P::ExtentsFeatureMissing { .. } => {
            superblock(SuperblockEdit::SetIncompat(Incompat::EXTENTS.bits()))
        }
        P::ExtentsFlagMissing { inode: of } => {
            inode(of, InodeEdit::SetFlags(InodeFlags::EXTENTS.bits()))
        }
        P::FastSymlinkExtentsFlag { inode: of } => clear_flags(of, InodeFlags::EXTENTS),
        P::BadblocksInodeInvalid { inode: of, .. } => inode(of, InodeEdit::ZeroBase),
        P::InodeBlockGarbage { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::InodeChecksumBad { inode: of, .. } => inode(of, InodeEdit::Checksum),
        P::XattrIbodyOverlap { inode: of, .. } => inode(of, InodeEdit::DropOwnAttributes),
        P::ExtentBlockChecksumBad { inode: of, node, .. } => map(of, MapEdit::Checksum { node }),
        P::XattrBlockChecksumBad { block, .. } => {
            one(Edit::AttributeBlock { block, edit: AttributeBlockEdit::Checksum })
        }
        P::ExtentNodeDepthWrong { inode: of, node, expected, .. } => {
            map(of, MapEdit::Depth { node, depth: expected })
        }
        P::ExtentIndexStartMismatch { inode: of, .. } => map(of, MapEdit::IndexStarts),
        P::InlineDataFeatureMissing { .. } => {
            superblock(SuperblockEdit::SetIncompat(Incompat::INLINE_DATA.bits()))
        }
        P::InlineDataFlagUnsupported { inode: of } => inode(of, InodeEdit::Clear),
        P::MapNodeOverlapsCriticalMetadata { inode: of, .. }
        | P::ClusterMisalignedMapping { inode: of, .. } => one(Edit::CloneShared { inode: of }),
        P::DirectoryExtentGap { inode: of, logical, expected } => {
            map(of, MapEdit::CloseGap { logical, to: expected })
        }
        P::DirectoryExtentUnwritten { inode: of, .. } => map(of, MapEdit::MarkWritten),
        P::InlineDataAttrMissing { inode: of } => inode(of, InodeEdit::EmptyInline),
        P::SpecialFileExtentsOrInlineFlag { inode: of, .. } => {
            inode(of, InodeEdit::ClearFlags(MAPPED))
        }
        P::InlineAndExtentsFlagsExtentRoot { inode: of } => {
            clear_flags(of, InodeFlags::INLINE_DATA)
        }
        P::InlineAndExtentsFlagsSmallFile { inode: of } => clear_flags(of, InodeFlags::EXTENTS),
        P::InlineAndExtentsFlagsBlockMap { inode: of } => inode(of, InodeEdit::ClearFlags(MAPPED)),
        P::InlineAndExtentsFlagsJunk { inode: of } => inode(of, InodeEdit::Clear),
        P::BadblocksListContainsItself { inode: of, .. } => inode(of, InodeEdit::ZeroBase),
        P::ExtentTreeTooDeep { inode, .. }
        | P::ExtentTreeCollapsible { inode, .. }
        | P::ExtentTreeNarrowable { inode, .. } => one(Edit::RebuildExtents { inode }),
        P::BigallocBlockMappedFile { inode: of } => map(of, MapEdit::ToExtents),
        P::InodeExtentHeaderCorrupt { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::InodeTimeEpochMisencoded { inode: of, field, .. } => inode(of, InodeEdit::Epoch(field)),
        P::XattrEaInodeFlagMissing { value_inode, .. } => {
            inode(value_inode, InodeEdit::SetFlags(InodeFlags::EA_INODE.bits()))
        }
        P::EaInodeDeleted { value_inode, .. } => inode(value_inode, InodeEdit::Undelete),
        P::EaInodeModeBad { value_inode, .. } => inode(value_inode, InodeEdit::Mode(MODE_REGULAR)),
        P::EaInodeWithAttributes { value_inode: of, .. } => Plan::Edits(vec![
            Edit::Inode { inode: of, edit: InodeEdit::DropAttributeBlock },
            Edit::Inode { inode: of, edit: InodeEdit::DropOwnAttributes },
        ]),
        P::CasefoldFlagOnNonDirectory { inode: of } | P::CasefoldFlagUnsupported { inode: of } => {
            clear_flags(of, InodeFlags::CASEFOLD)
        }
        P::XattrNameWithZero { inode: of, block, offset_bytes }
        | P::XattrAclWithName { inode: of, block, offset_bytes } => {
            inode(of, InodeEdit::AttributeName { block, offset_bytes })
        }
        P::XattrListUnreadable { inode: of, block, offset_bytes }
        | P::XattrListMisread { inode: of, block, offset_bytes, .. } => {
            inode(of, InodeEdit::AccessList { block, offset_bytes })
        }
        P::VerityFlagUnsupported { inode: of } => clear_flags(of, InodeFlags::VERITY),
        P::EncryptFlagWithoutContext { inode: of } | P::RootDirectoryEncrypted { inode: of } => {
            clear_flags(of, InodeFlags::ENCRYPT)
        }
        P::EncryptionContextCorrupt { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::EaInodeFlagOnNonRegular { inode: of } => clear_flags(of, InodeFlags::EA_INODE),
        P::EaInodeFeatureMissing { .. } => {
            superblock(SuperblockEdit::SetIncompat(Incompat::EA_INODE.bits()))
        }

        P::MultiplyClaimedBlock { .. }
        | P::MultiplyClaimedRange { .. }
        | P::MultiplyClaimedSharer { .. }
        | P::MultiplyClaimedWithMetadata { .. } => Plan::WithAnother,
        P::MultiplyClaimedFile { inode, .. } => one(Edit::CloneShared { inode }),

        P::DotEntryWrongInode { dir, logical, .. }
        | P::DotEntryMissing { dir, logical }
        | P::FirstEntryNotDot { dir, logical, .. }
        | P::DotEntryNotTerminated { dir, logical } => {
            directory(dir, logical, DirectoryEdit::MakeDot)
        }
        P::DotdotEntryMissing { dir, logical }
        | P::SecondEntryNotDotdot { dir, logical, .. }
        | P::DotdotEntryNotTerminated { dir, logical } => {
            directory(dir, logical, DirectoryEdit::MakeDotdot)
        }
        // `..` is not cleared but recreated: the tree phase sets the inode it names.
        P::DirentInodeIllegal { dir, logical, ref name, .. }
        | P::DirentInodeUnused { dir, logical, ref name, .. }
        | P::DirentInodeOnBadBlock { dir, logical, ref name, .. }
        | P::DirentLinksToEaInode { dir, logical, ref name, .. }
            if *name.0 == *b".." =>
        {
            directory(dir, logical, DirectoryEdit::MakeDotdot)
        }
        P::DirentInodeIllegal { dir, logical, offset_bytes, .. }
        | P::DirentInodeUnused { dir, logical, offset_bytes, .. }
        | P::DirentLinksToOwnDirectory { dir, logical, offset_bytes, .. }
        | P::DirentInodeOnBadBlock { dir, logical, offset_bytes, .. }
        | P::DirectoryHardLink { dir, logical, offset_bytes, .. }
        | P::DirentLinksToRoot { dir, logical, offset_bytes, .. }
        | P::DotEntryDuplicate { dir, logical, offset_bytes, .. }
        | P::DotdotEntryDuplicate { dir, logical, offset_bytes, .. }
        | P::DirentNameEmpty { dir, logical, offset_bytes, .. }
        | P::EncryptedNameTooShort { dir, logical, offset_bytes, .. }
        | P::EncryptedDirPlainFile { dir, logical, offset_bytes, .. }
        | P::EncryptedDirPolicyMismatch { dir, logical, offset_bytes, .. }
        | P::DirentLinksToEaInode { dir, logical, offset_bytes, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::Clear)
        }
        P::DirentNameIllegalChar { dir, logical, offset_bytes, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::LegalCharacters)
        }
        P::CasefoldNameInvalidEncoding { dir, logical, offset_bytes, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::ValidText)
        }
        P::InodeFaddrNonzero { inode: of, .. } => inode(of, InodeEdit::FaddrZero),
        P::InodeFileAclWithoutXattrFeature { attributes: 1.., .. } => {
            superblock(SuperblockEdit::SetCompat(Compat::EXT_ATTR.bits()))
        }
        P::InodeFileAclWithoutXattrFeature { inode: of, .. }
        | P::InodeFileAclOutOfRange { inode: of, .. } => inode(of, InodeEdit::DropAttributeBlock),
        P::DirectorySizeHighNonzero { inode: of, .. } => inode(of, InodeEdit::SizeHighZero),
        P::InodeFragNonzero { inode: of, .. } => inode(of, InodeEdit::FragZero),
        P::InodeFsizeNonzero { inode: of, .. } => inode(of, InodeEdit::FsizeZero),
        P::InodeModeIllegal { inode: of, .. }
        | P::CharDeviceInvalid { inode: of, .. }
        | P::BlockDeviceInvalid { inode: of, .. }
        | P::FifoInvalid { inode: of, .. }
        | P::SocketInvalid { inode: of, .. }
        | P::SymlinkInvalid { inode: of, .. } => inode(of, InodeEdit::Clear),
        P::DirentStructureCorrupt { dir, logical, .. } => {
            directory(dir, logical, DirectoryEdit::Salvage)
        }
        P::DirectoryHole { dir, logical } => directory(dir, logical, DirectoryEdit::Fill),
        P::DirBlockReadError { dir, logical, .. } => directory(dir, logical, DirectoryEdit::Empty),
        P::DotEntryOversized { dir, logical, .. } => {
            directory(dir, logical, DirectoryEdit::TrimDot)
        }
        P::DirentTypeUnset { dir, logical, offset_bytes, expected, .. }
        | P::DirentTypeWrong { dir, logical, offset_bytes, expected, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::Type(expected))
        }
        P::DirentTypeUnsupported { dir, logical, offset_bytes, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::Type(0))
        }
        P::LargeFileFeatureMissing => {
            superblock(SuperblockEdit::SetRoCompat(RoCompat::LARGE_FILE.bits()))
        }
        P::HtreeBlockUnreferenced { dir, .. }
        | P::HtreeBlockReferencedTwice { dir, .. }
        | P::HtreeHashBelowRange { dir, .. }
        | P::HtreeHashAboveRange { dir, .. }
        | P::HtreeInconsistent { dir }
        | P::HtreeBlockNumberBad { dir, .. }
        | P::HtreeRootBad { dir, .. }
        | P::HtreeLimitWrong { dir, .. }
        | P::HtreeCountTooLarge { dir, .. }
        | P::HtreeHashesUnordered { dir, .. }
        | P::HtreeLeafDepthWrong { dir, .. }
        | P::DirentDuplicateInBlock { dir, .. }
        | P::HtreeRootChecksumBad { dir, .. }
        | P::HtreeNodeChecksumBad { dir, .. }
        | P::DirBlockChecksumTailMissing { dir, .. } => rebuild(dir),
        P::LargeDirFeatureMissing { .. } => {
            superblock(SuperblockEdit::SetIncompat(Incompat::LARGEDIR.bits()))
        }
        P::InodeBlocksHighNonzero { inode: of, .. } => inode(of, InodeEdit::BlocksHighZero),
        P::DirentInodeInUninitGroup { group: nr, .. } => group(nr, GroupEdit::ClearInodeUninit),
        P::DirentInodeInUnusedArea { group: nr, .. } => group(nr, GroupEdit::ItableUnusedZero),
        P::InodeFileAclHighNonzero { inode: of, .. } => inode(of, InodeEdit::FileAclHighZero),
        P::DirBlockChecksumBad { dir, logical, .. } => {
            directory(dir, logical, DirectoryEdit::Checksum)
        }
        P::InlineDirectorySizeBad { dir, .. } => inode(dir, InodeEdit::InlineDirectorySize),

        P::RootInodeMissing { .. } => one(Edit::Tree(TreeEdit::CreateRoot)),
        P::DirectoryUnconnected { dir, .. } => one(Edit::Tree(TreeEdit::Reconnect(dir))),
        P::DirectoryLoop { dir, parent } => Plan::Edits(vec![
            Edit::Tree(TreeEdit::Unlink { dir: parent, child: dir }),
            Edit::Tree(TreeEdit::Reconnect(dir)),
        ]),
        P::LostFoundMissing => one(Edit::Tree(TreeEdit::CreateLostFound)),
        P::DotdotWrongParent { dir, expected, .. } => {
            one(Edit::Tree(TreeEdit::Parent { dir, parent: expected }))
        }
        P::LostFoundNotDirectory { .. }
        | P::LostFoundInline { .. }
        | P::LostFoundEncrypted { .. } => one(Edit::Tree(TreeEdit::UnlinkLostFound)),

        P::UnattachedEmptyInode { inode } => one(Edit::Release { inode }),
        P::UnattachedInode { inode, .. } => one(Edit::Attach { inode }),
        P::InodeLinkCountWrong { inode, counted, .. }
        | P::DirectoryLinkCountOverflowStale { inode, counted } => match u16::try_from(counted) {
            Ok(links) => one(Edit::LinkCount { inode, links }),
            Err(_) => Plan::Impossible("an inode cannot have so many links"),
        },
        P::EaInodeRefcountWrong { inode: of, counted, .. } => {
            inode(of, InodeEdit::EaReferences(counted))
        }
        P::DirNlinkFeatureMissing { .. } => {
            superblock(SuperblockEdit::SetRoCompat(RoCompat::DIR_NLINK.bits()))
        }
        P::EaInodeFlagUnreferenced { inode: of } => clear_flags(of, InodeFlags::EA_INODE),

        P::InodeBitmapPaddingClear { group }
        | P::BlockBitmapPaddingClear { group }
        | P::BlockBitmapLeakedBlock { group, .. }
        | P::BlockBitmapMissingBlock { group, .. }
        | P::InodeBitmapLeakedInode { group, .. }
        | P::InodeBitmapMissingInode { group, .. }
        | P::GroupFreeInodeCountWrong { group, .. }
        | P::GroupDirectoryCountWrong { group, .. }
        | P::GroupFreeBlockCountWrong { group, .. }
        | P::BlockBitmapLeakedRange { group, .. }
        | P::BlockBitmapMissingRange { group, .. }
        | P::InodeBitmapLeakedRange { group, .. }
        | P::InodeBitmapMissingRange { group, .. }
        | P::BlockUsedInUninitGroup { group, .. }
        | P::InodeUsedInUninitGroup { group, .. }
        | P::InodeBitmapChecksumBad { group, .. }
        | P::BlockBitmapChecksumBad { group, .. } => one(Edit::GroupMaps { group }),
        P::FreeInodeTotalWrong { .. } | P::FreeBlockTotalWrong { .. } => one(Edit::Totals),

        P::QuotaUsageWrong { kind, .. } | P::QuotaFileCorrupt { kind, .. } => {
            one(Edit::QuotaFile { kind })
        }
        P::OrphanFileWithoutJournal { .. } => one(Edit::OrphanFile(OrphanFileEdit::Remove)),
        P::OrphanFileCorrupt { .. }
        | P::OrphanFileSizeUnaligned { .. }
        | P::OrphanFileHole { .. } => one(Edit::OrphanFile(OrphanFileEdit::Recreate)),
        P::OrphanFileBlockDirty { .. } => one(Edit::OrphanFile(OrphanFileEdit::Clean)),
        P::OrphanPresentFlagStale | P::OrphanPresentWithoutOrphanFile => {
            one(Edit::OrphanFile(OrphanFileEdit::ClearPresent))
        }

        P::UnreadableBlock { .. } => {
            Plan::Impossible("the block is unreadable: copy the device first (ddrescue)")
        }
        P::UnreadableInodeTable { .. } => {
            Plan::Impossible("the block is unreadable: copy the device first (ddrescue)")
        }
        P::UnreadableBitmap { group: nr, kind, .. } => group(
            nr,
            if kind == "block" { GroupEdit::MoveBlockBitmap } else { GroupEdit::MoveInodeBitmap },
        ),
        P::UnreadableGroupDescriptors { .. } => {
            Plan::Impossible("the block is unreadable: copy the device first (ddrescue)")
        }
        P::ImageTruncated { .. } => {
            Plan::Impossible("the part past the end of the device cannot be repaired")
        }
        P::UnknownRevision { .. } | P::UnknownNameEncoding { .. } => {
            Plan::Impossible("a newer tool is needed")
        }
        P::MountedDuringCheck => Plan::Remark,
        P::IndirectHeaderWrong { inode: of, block, level, .. } => {
            map(of, MapEdit::Header { node: block, level })
        }
        P::NativeIdentityWrong { .. } => superblock(SuperblockEdit::NativeIdentity),
        P::LotRecordWrong { group: nr, .. } => group(nr, GroupEdit::LotRecord),
        P::OwnDirectoryMissing { .. } => one(Edit::OwnDirectories),
        P::ReservationFileMissing { group, .. } => reservation(group, ReservationEdit::Create),
        P::ReservationFileUnnamed { group, .. } => reservation(group, ReservationEdit::Name),
        P::ReservationFileWrong { group, .. } => reservation(group, ReservationEdit::Empty),
        P::RegionNotReserved { group, .. } => reservation(group, ReservationEdit::Fill),
        P::BackpointersWrong { .. } => one(Edit::Backpointers),
        P::CubeCopyDamaged { cube, .. } => one(Edit::Cube { cube, edit: CubeEdit::Copies }),
        P::CubeFailureRecorded { cube } => one(Edit::Cube { cube, edit: CubeEdit::Clear }),
        P::CubeSuperblockLost { cube, .. } | P::CubeTopWrong { cube, .. } => {
            one(Edit::Cube { cube, edit: CubeEdit::Rebuild })
        }
        P::CubeWithoutLot { cube } => one(Edit::Cube { cube, edit: CubeEdit::Lots }),
        P::CubeNameOutside { dir, logical, offset_bytes, .. } => {
            entry(dir, logical, offset_bytes, EntryEdit::Clear)
        }
        P::CubeBlocksOutside { inode, .. } => one(Edit::CloneShared { inode }),
        P::CubeOrphanOutside { cube, .. } | P::CubeJournalDamaged { cube, .. } => {
            one(Edit::Cube { cube, edit: CubeEdit::Journal })
        }
        P::CubeEntangledBlocks { inode, .. } => one(Edit::MoveHome { inode }),
        P::CubeEntangledName { inode_named, .. } => one(Edit::MoveInode { inode: inode_named }),
        P::CubeHintOld { .. } => Plan::Remark,
        P::RecoveryPending { .. } | P::OrphansPending { .. } => Plan::Remark,
        P::JournalErrorRecorded { .. } => journal(JournalEdit::ClearError),
        P::TimestampNanosecondsBad { .. } => Plan::Remark,
        P::NotCleanlyUnmounted { .. } | P::KernelRecordedErrors { .. } => Plan::AtTheEnd,
        P::BackupSuperblockDiffers { .. }
        | P::BackupSuperblockBad { .. }
        | P::BackupDescriptorsBad { .. } => one(Edit::Backups),
        P::MmpInUse { .. } => Plan::Impossible("another host or program uses the file system"),
        P::BadBlockListUnreadable { inode: of, .. } => inode(of, InodeEdit::ZeroBase),
    }
}
