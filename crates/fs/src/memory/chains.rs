//! Chains of the names of a directory: they only grow beside others, so a name that was found stays where it is until somebody is
//! alone.
//!
//! That a name is there is told apart from where it leads, on another cache line: whoever only asks whether there is one, or is
//! refused because it leads to a directory or does not, shares nothing with a rename that lets it lead elsewhere. Where it
//! leads lies beside the lock of its stripe for the first name of a stripe, and in lines of eight for the others.

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use floe_sync::{Arc, OnceLock};

use super::apart::Apart;
use super::mnode::Mnode;
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

/// A name of a directory, or one that leads nowhere any more, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Name {
    pub(super) cookie: u64,
    pub(super) name: Short,
    /// The line of its target; `None` for the first name of the stripe, whose target the stripe has.
    pub(super) line: Option<Arc<Targets>>,
    pub(super) next: Chain,
    /// A [`Sort`], 0 if the name leads nowhere. A rename that replaces the target leaves it alone.
    pub(super) sort: AtomicU32,
    /// The place in the line.
    pub(super) at: u8,
}

const _: () = assert!(cfg!(feature = "shuttle") || size_of::<Name>() == 64);

/// Targets of names of one stripe: the inode of each, and the code of its type above; 0 if the name leads nowhere.
pub(super) type Targets = Apart<[AtomicU64; TARGETS]>;
const TARGETS: usize = 8;

/// The kind of inode that a name leads to, as far as a rename that replaces it leaves that alone.
///
/// It is known of names that memory changed, whose inodes had [simple](Mnode::is_simple) flags then, until any inode gets other
/// flags: an inode with others may be refused for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// A look at the inode tells.
    Any,
    Directory,
    Other,
}

impl Sort {
    const fn new(is_directory: bool) -> Self {
        if is_directory { Self::Directory } else { Self::Other }
    }

    /// That of an inode whose kind is known until flags change.
    pub(crate) fn of(node: &Mnode) -> Self {
        if node.is_simple() { Self::new(node.is_directory()) } else { Self::Any }
    }

    /// The word for a name that leads somewhere; `flagged` counts changes of flags.
    pub(super) const fn word(self, flagged: u32) -> u32 {
        let code = match self {
            Self::Any => return 1,
            Self::Directory => 2,
            Self::Other => 3,
        };
        code | flagged << 2
    }

    /// `None` for a name that leads nowhere.
    pub(super) const fn of_word(word: u32, flagged: u32) -> Option<Self> {
        let holds = word >> 2 == flagged << 2 >> 2;
        Some(match word & 3 {
            0 => return None,
            2 if holds => Self::Directory,
            3 if holds => Self::Other,
            _ => Self::Any,
        })
    }
}

impl Name {
    /// Whether it leads somewhere.
    pub(super) fn leads(&self) -> bool {
        self.sort.load(Ordering::Acquire) != 0
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
    pub(super) target: &'s AtomicU64,
    pub(crate) found: Found,
}

impl Seen<'_> {
    /// Whether it leads there still.
    pub(crate) fn is_still(&self) -> bool {
        self.target.load(Ordering::Acquire) == self.found.word()
    }

    /// Lets it lead nowhere. The caller has its stripe's lock, and lets readers of names wait.
    pub(crate) fn lose(&self, _locked: &mut Inside) {
        self.target.store(0, Ordering::Release);
        self.name.sort.store(0, Ordering::Release);
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
    /// The line in which the next names have their targets.
    pub(super) targets: Option<Arc<Targets>>,
}

impl Inside {
    /// The line and the place of the target of a further name of the stripe, which has so many.
    pub(super) fn next_target(&mut self, names: usize) -> (Option<Arc<Targets>>, u8) {
        let Some(at) = names.checked_sub(1).map(|at| at % TARGETS) else { return (None, 0) };
        let line = match at {
            0 => self.targets.insert(Arc::default()),
            _ => self.targets.get_or_insert_default(),
        };
        // Below eight.
        (Some(Arc::clone(line)), at as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_are_known_until_flags_change() {
        for (sort, later) in [Sort::Directory, Sort::Other, Sort::Any].map(|sort| (sort, Sort::Any))
        {
            assert_eq!(Sort::of_word(sort.word(7), 7), Some(sort));
            assert_eq!(Sort::of_word(sort.word(7), 8), Some(later));
        }
        assert_eq!(Sort::of_word(0, 0), None);
    }

    #[test]
    fn no_two_names_have_the_same_target() {
        let mut inside = Inside::default();
        let all: Vec<_> = (0..40).map(|names| inside.next_target(names)).collect();
        let place = |(line, at): &(Option<Arc<Targets>>, u8)| {
            (line.as_ref().map(Arc::as_ptr), usize::from(*at))
        };
        let places: std::collections::BTreeSet<_> = all.iter().map(place).collect();
        assert_eq!(places.len(), 40);
        assert!(places.iter().all(|(_, at)| *at < TARGETS));
    }
}
