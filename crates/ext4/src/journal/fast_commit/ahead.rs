//! Looks ahead for the flags that an inode is about to have.

use std::collections::HashMap;

use floe_format::InodeNr;
use floe_format::ext::fast_commit::FcTag;
use floe_format::ext::inode::{InodeFlags, OwnedInode};

/// For each record of a range, the flags in the next INODE record of its inode in the same fast commit. Linux writes ranges
/// first, so an inode that was inline has blocks before a record says so.
pub(super) fn flags(tags: &[FcTag<'_>]) -> Vec<Option<InodeFlags>> {
    let mut next: HashMap<InodeNr, InodeFlags> = HashMap::new();
    let mut found = vec![None; tags.len()];
    for (tag, of) in tags.iter().zip(&mut found).rev() {
        match tag {
            FcTag::Tail { .. } => next.clear(),
            FcTag::Inode { inode, raw } => {
                let image = OwnedInode::of(*inode, raw.to_vec());
                next.extend(image.map(|image| (*inode, image.flags())));
            }
            FcTag::AddRange { inode, .. } | FcTag::DelRange { inode, .. } => {
                *of = next.get(inode).copied();
            }
            _ => {}
        }
    }
    found
}
