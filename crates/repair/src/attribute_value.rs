//! The value of an attribute that lies in an inode of its own, as a proof of that inode.

use floe_format::LogicalBlock;
use floe_format::ext::inode::{InodeBase, InodeFlags};
use floe_format::ext::xattr::value_inode::{stored_hash, value_hash};

use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

/// Maximum length of a value (`EXT4_XATTR_SIZE_MAX`).
const MOST_VALUE_BYTES: u64 = 1 << 24;
/// Mode of an inode that holds a value.
const MODE_REGULAR: u16 = 0o100_000;

/// Whether an inode is marked as one that holds an attribute's value, and its content has the hash that it remembers.
pub(crate) fn is_proved_value(stage: &Stage<'_>, image: &InodeImage) -> bool {
    image.flags().contains(InodeFlags::EA_INODE) && has_value(stage, image)
}

/// Whether the content of an inode has the hash that it remembers as that of an attribute's value.
pub(crate) fn has_value(stage: &Stage<'_>, image: &InodeImage) -> bool {
    content(stage, image, image.size_bytes())
        .is_some_and(|value| value_hash(stage.seed, &value) == stored_hash(&image.base))
}

/// The first `size` bytes of an inode that holds a value, whatever type its mode gives it; `None` if it is not that long, or
/// unreadable.
pub(crate) fn content(stage: &Stage<'_>, image: &InodeImage, size: u64) -> Option<Vec<u8>> {
    if size == 0 || size > MOST_VALUE_BYTES {
        return None;
    }
    let base = InodeBase { mode: MODE_REGULAR, ..image.base.clone() };
    let map = FileMap::load(stage, &InodeImage { base, ..image.clone() });
    let mut content = Vec::new();
    for logical in 0..size.div_ceil(stage.block_size() as u64) {
        content.extend(stage.read_block(map.find(LogicalBlock(logical))?).ok()?);
    }
    content.truncate(usize::try_from(size).ok()?);
    Some(content)
}
