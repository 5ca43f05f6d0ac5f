//! Which encrypted inode has which encryption policy.

use floe_exec::Accumulator;
use floe_format::InodeNr;

/// Encryption policies of encrypted inodes.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// Each encrypted inode with the identity of its policy: the context without its nonce; empty
    /// if it has no readable context. In no order while collected.
    pub by_inode: Vec<(InodeNr, Box<[u8]>)>,
}

impl Policies {
    /// Puts the inodes in order, so that [`Policies::get`] finds them.
    pub fn sort(&mut self) {
        self.by_inode.sort_unstable();
    }

    /// The policy of an inode, once sorted; `None` if it is not encrypted.
    pub fn get(&self, inode: InodeNr) -> Option<&[u8]> {
        let at = self.by_inode.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        self.by_inode.get(at).map(|(_, policy)| &**policy)
    }
}

impl Accumulator for Policies {
    fn merge(&mut self, mut other: Self) {
        self.by_inode.append(&mut other.by_inode);
    }
}
