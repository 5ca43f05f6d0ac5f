//! Every structure comes back from its bytes: all fields survive, and in structures without gaps
//! all bytes do.

use floe_format::ext::crypt::{ContextV1, ContextV2};
use floe_format::ext::dirent::{DirEntryHeader, DirTail};
use floe_format::ext::extent::{ExtentHeader, RawExtent, RawIndex};
use floe_format::ext::group_desc::{GroupDescHigh, GroupDescLow};
use floe_format::ext::htree::{DxCountLimit, DxRootInfo, DxTail, RawDxEntry};
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::{InodeBase, InodeExtra};
use floe_format::ext::jbd2::{BlockHeader, CommitBlock, JournalSuperblock};
use floe_format::ext::mmp::Mmp;
use floe_format::ext::quota::{Dquot, LeafHeader, QuotaHeader};
use floe_format::ext::superblock::Superblock;
use floe_format::ext::undo::{UndoHeader, UndoKey, UndoKeyHeader};
use floe_format::ext::xattr::{RawXattrEntry, XattrHeader};
use floe_format::native::backpointer::Backpointer;
use floe_format::native::cube::CubeHeader;
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::rext3::Record;
use proptest::prelude::*;

macro_rules! round_trips {
    ($($name:ident: $structure:ty,)*) => {
        proptest! {$(
            #[test]
            fn $name(bytes in proptest::collection::vec(any::<u8>(), <$structure>::SIZE)) {
                let bytes: [u8; <$structure>::SIZE] = bytes.try_into().unwrap();
                let decoded = <$structure>::decode(&bytes);
                // Fields do not overlap, and all are encoded: no old bytes remain.
                for old in [0x00, 0xff] {
                    let mut encoded = [old; <$structure>::SIZE];
                    decoded.encode_into(&mut encoded);
                    prop_assert_eq!(encoded, bytes);
                }
                prop_assert_eq!(<$structure>::decode(&bytes), decoded);
            }
        )*}
    };
}

round_trips! {
    superblock: Superblock,
    group_desc_low: GroupDescLow,
    group_desc_high: GroupDescHigh,
    indirect_header: Header,
    rext3_record: Record,
    inode_base: InodeBase,
    inode_extra: InodeExtra,
    extent_header: ExtentHeader,
    raw_extent: RawExtent,
    raw_index: RawIndex,
    dir_entry_header: DirEntryHeader,
    dir_tail: DirTail,
    dx_root_info: DxRootInfo,
    dx_count_limit: DxCountLimit,
    raw_dx_entry: RawDxEntry,
    dx_tail: DxTail,
    xattr_header: XattrHeader,
    raw_xattr_entry: RawXattrEntry,
    undo_header: UndoHeader,
    undo_key_header: UndoKeyHeader,
    undo_key: UndoKey,
    journal_header: BlockHeader,
    journal_superblock: JournalSuperblock,
    commit_block: CommitBlock,
    mmp: Mmp,
    cube_header: CubeHeader,
    identity: Identity,
    lot_record: LotRecord,
    backpointer: Backpointer,
    quota_header: QuotaHeader,
    quota_leaf_header: LeafHeader,
    dquot: Dquot,
    context_v1: ContextV1,
    context_v2: ContextV2,
}
