//! Chains of the names of a directory: they only grow beside others, so a name that was found stays where it is until somebody is
//! alone.

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_sync::OnceLock;
use floe_sync::atomic::{AtomicU64, Ordering};

use super::record::Stamp;
use super::short::Short;
use super::status::{code_of, kind_of};

/// Chains of names, a power of two. A small directory takes no further memory for them.
#[derive(Debug)]
pub(super) enum Chains {
    One(Chain),
    Many(Box<[Chain]>),
}

impl Chains {
    pub(super) fn new(count: usize) -> Self {
        match count {
            0 | 1 => Self::One(OnceLock::new()),
            _ => Self::Many((0..count).map(|_| OnceLock::new()).collect()),
        }
    }

    pub(super) const fn all(&self) -> &[Chain] {
        match self {
            Self::One(chain) => std::slice::from_ref(chain),
            Self::Many(chains) => chains,
        }
    }
}

pub(super) type Chain = OnceLock<Box<Name>>;

/// A name of a directory, or one that leads nowhere any more.
#[derive(Debug)]
pub(crate) struct Name {
    pub(super) cookie: u64,
    pub(super) name: Short,
    /// The inode, and the code of its type above; 0 if it leads nowhere.
    pub(super) target: AtomicU64,
    pub(super) next: Chain,
}

impl Name {
    /// Its cookie, itself, and where it leads to; `None` if that is nowhere.
    pub(super) fn seen(&self) -> Option<(u64, &[u8], Found)> {
        let found = Found::of(self.target.load(Ordering::Acquire))?;
        Some((self.cookie, &self.name, found))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // One by one: a long chain would take a long stack.
        let mut next = self.next.take();
        while let Some(mut name) = next {
            next = name.next.take();
        }
    }
}

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) inode: InodeNr,
    pub(crate) kind: Option<FileType>,
}

impl Found {
    pub(super) fn word(self) -> u64 {
        u64::from(self.inode.0) | u64::from(code_of(self.kind)) << 32
    }

    pub(super) fn of(word: u64) -> Option<Self> {
        let kind = kind_of((word >> 32) as u8);
        (word != 0).then_some(Self { inode: InodeNr(word as u32), kind })
    }
}

/// A name that was found, and where it led to then. It stays where it is until somebody is alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'s> {
    pub(super) name: &'s Name,
    pub(crate) found: Found,
}

impl Seen<'_> {
    /// Whether it leads there still.
    pub(crate) fn is_still(&self) -> bool {
        self.name.target.load(Ordering::Acquire) == self.found.word()
    }

    /// Lets it lead elsewhere, or nowhere. The caller has its stripe's lock.
    pub(crate) fn lead(&self, _locked: &mut Inside, to: Option<Found>) {
        self.name.target.store(to.map_or(0, Found::word), Ordering::Release);
    }
}

/// Where a name may be put.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room<'s> {
    /// It leads somewhere, or it did with the cookie that is free.
    Known { name: &'s Name, leads: bool },
    /// Behind the last one of its chain.
    Behind { end: &'s Chain, cookie: u64 },
}

impl Room<'_> {
    /// Whether the name leads somewhere.
    pub(crate) const fn leads(self) -> bool {
        matches!(self, Self::Known { leads: true, .. })
    }
}

/// Fields that the lock of a stripe guards.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The last change.
    pub(crate) last: Stamp,
}
