//! The names of a directory in memory, which readers look up without writing anything, and which threads that work on
//! different names change at the same time.
//!
//! Names lie in stripes by the first bits of their hash, so stripes in their order have the names in the order of cookies. A
//! change locks the stripes of its names, and no others. The times and the subdirectories of the directory are kept by stripe,
//! too, so that changes of different stripes share no memory.
//!
//! A name that goes stays in its chain, as one that leads nowhere, until somebody who is alone builds the directory anew.

use floe_format::InodeNr;
use floe_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::pages::{pack, unpack};
use super::record::Stamp;
use super::status::{Version, code_of, kind_of};
use crate::directory::{AFTER_DOT_DOT, Entry, NameHash, TIE_BITS};
use crate::{Directory, Timestamp};

/// Stripes of a directory: a power of two.
const STRIPES: usize = 16;
/// Names of a chain, at which the directory is to be built anew, and of a new one.
const MOST_IN_CHAIN: usize = 4;
const FEW_IN_CHAIN: usize = 1;

/// The names of a directory that compares them byte by byte and that is read whole.
#[derive(Debug)]
pub(crate) struct Stripes {
    hash: NameHash,
    parent: AtomicU32,
    /// When it was created, if memory saw that.
    pub(crate) born: Stamp,
    /// The directory's number of links is that of its subdirectories.
    pub(crate) counted: bool,
    stripes: Box<[Stripe]>,
}

/// One stripe, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Stripe {
    lock: Mutex<Inside>,
    version: Version,
    /// The last change of a name here, packed; 0 for none since the directory was read.
    time: AtomicU64,
    /// How many subdirectories came.
    subdirectories: AtomicU32,
    /// Names, those that lead nowhere among them. Who has the lock changes it.
    chained: AtomicU32,
    chains: Chains,
}

/// Chains of names, a power of two. A small directory takes no further memory for them.
#[derive(Debug)]
enum Chains {
    One(Chain),
    Many(Box<[Chain]>),
}

impl Chains {
    fn new(count: usize) -> Self {
        match count {
            0 | 1 => Self::One(OnceLock::new()),
            _ => Self::Many((0..count).map(|_| OnceLock::new()).collect()),
        }
    }

    const fn all(&self) -> &[Chain] {
        match self {
            Self::One(chain) => std::slice::from_ref(chain),
            Self::Many(chains) => chains,
        }
    }
}

/// What the lock of a stripe guards.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The last change.
    pub(crate) last: Stamp,
}

type Chain = OnceLock<Box<Name>>;

#[derive(Debug)]
struct Name {
    cookie: u64,
    name: Box<[u8]>,
    /// The inode, and the code of its type above; 0 if it leads nowhere.
    target: AtomicU64,
    next: Chain,
}

impl Name {
    /// Its cookie, itself, and where it leads to; `None` if that is nowhere.
    fn seen(&self) -> Option<(u64, &[u8], Found)> {
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
    pub(crate) kind: Option<floe_format::ext::inode::FileType>,
}

impl Found {
    fn word(self) -> u64 {
        u64::from(self.inode.0) | u64::from(code_of(self.kind)) << 32
    }

    fn of(word: u64) -> Option<Self> {
        let kind = kind_of((word >> 32) as u8);
        (word != 0).then_some(Self { inode: InodeNr(word as u32), kind })
    }
}

/// The first bits of the hash in a cookie, which has 63.
const fn stripe_of(cookie: u64) -> usize {
    (cookie >> (63 - STRIPES.ilog2())) as usize & (STRIPES - 1)
}

impl Stripe {
    fn new(chains: usize) -> Self {
        Self {
            lock: Mutex::default(),
            version: Version::default(),
            time: AtomicU64::new(0),
            subdirectories: AtomicU32::new(0),
            chained: AtomicU32::new(0),
            chains: Chains::new(chains),
        }
    }

    /// The chain of a cookie, by the bits of the hash behind those of the stripe.
    fn chain(&self, cookie: u64) -> &Chain {
        &self.chains.all()[self.chain_number(cookie)]
    }

    fn chain_number(&self, cookie: u64) -> usize {
        let count = self.chains.all().len();
        (cookie >> (63 - STRIPES.ilog2() - count.ilog2())) as usize & (count - 1)
    }

    fn names(chain: &Chain) -> impl Iterator<Item = &Name> {
        std::iter::successors(chain.get(), |name| name.next.get()).map(|name| &**name)
    }

    fn time(&self) -> Option<Timestamp> {
        unpack(self.time.load(Ordering::Relaxed))
    }
}

impl Stripes {
    /// An empty directory.
    pub(crate) fn new(hash: NameHash, parent: InodeNr, born: Stamp) -> Self {
        let stripes = (0..STRIPES).map(|_| Stripe::new(1)).collect();
        Self { hash, parent: AtomicU32::new(parent.0), born, counted: true, stripes }
    }

    /// The names of a directory that was read; `links` are those that its inode states.
    pub(crate) fn of(directory: &Directory, hash: NameHash, links: u32) -> Self {
        let mut all = Self::new(hash, directory.parent(), Stamp::default());
        let mut subdirectories = 0;
        let names: Vec<(u64, Entry)> =
            directory.behind(0).map(|(cookie, entry)| (cookie, entry.clone())).collect();
        all.counted = names.iter().all(|(_, entry)| {
            subdirectories +=
                u32::from(entry.kind == Some(floe_format::ext::inode::FileType::Directory));
            entry.kind.is_some()
        }) && links == subdirectories + 2;
        all.build(names.into_iter().map(|(cookie, entry)| {
            (cookie, entry.name, Found { inode: entry.inode, kind: entry.kind })
        }));
        all
    }

    /// Replaces all names.
    fn build(&mut self, names: impl Iterator<Item = (u64, Box<[u8]>, Found)>) {
        let names: Vec<_> = names.collect();
        let chains = (names.len() / STRIPES / FEW_IN_CHAIN).next_power_of_two();
        for stripe in &mut self.stripes {
            stripe.chains = Chains::new(chains);
            *stripe.chained.get_mut() = 0;
        }
        for (cookie, name, found) in names {
            let stripe = &self.stripes[stripe_of(cookie)];
            append(stripe, cookie, name, found);
        }
    }

    /// Drops names that lead nowhere, and makes room for more.
    pub(crate) fn rebuild(&mut self) {
        let mut names = Vec::new();
        self.each_behind(0, &mut |cookie, name, found| {
            names.push((cookie, Box::from(name), found));
            true
        });
        self.build(names.into_iter());
    }

    pub(crate) fn parent(&self) -> InodeNr {
        InodeNr(self.parent.load(Ordering::Acquire))
    }

    /// Lets `..` lead elsewhere.
    pub(crate) fn set_parent(&self, parent: InodeNr) {
        self.parent.store(parent.0, Ordering::Release);
    }

    /// The cookies that a name can have begin here.
    fn first_cookie(&self, name: &[u8]) -> u64 {
        self.hash.cookie(name).max(AFTER_DOT_DOT + 1)
    }

    /// The stripe of a name.
    pub(crate) fn stripe(&self, name: &[u8]) -> usize {
        stripe_of(self.first_cookie(name))
    }

    fn probe(&self, cookie: u64, name: &[u8]) -> Option<&Name> {
        let chain = self.stripes[stripe_of(cookie)].chain(cookie);
        // The cookie first: the bytes of a name lie elsewhere.
        let ties = cookie..cookie + (1 << TIE_BITS);
        let same = |one: &&Name| {
            let same = ties.contains(&one.cookie) && *one.name == *name;
            same && one.target.load(Ordering::Acquire) != 0
        };
        Stripe::names(chain).find(same)
    }

    /// Where a name leads to.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Found> {
        let cookie = self.first_cookie(name);
        let stripe = &self.stripes[stripe_of(cookie)];
        stripe.version.read(|| {
            let name = self.probe(cookie, name)?;
            Found::of(name.target.load(Ordering::Acquire))
        })
    }

    /// Calls `take` for each name behind a cookie, in their order, until it returns `false`.
    pub(crate) fn each_behind(&self, cookie: u64, take: &mut dyn FnMut(u64, &[u8], Found) -> bool) {
        let from = cookie.max(AFTER_DOT_DOT);
        let first = stripe_of(from);
        for (at, stripe) in self.stripes.iter().enumerate().skip(first) {
            let skipped = if at == first { stripe.chain_number(from) } else { 0 };
            for chain in stripe.chains.all().iter().skip(skipped) {
                let mut names: Vec<(u64, &[u8], Found)> = stripe.version.read(|| {
                    let names = Stripe::names(chain).filter(|name| name.cookie > from);
                    names.filter_map(Name::seen).collect()
                });
                names.sort_unstable_by_key(|(cookie, ..)| *cookie);
                for (cookie, name, found) in names {
                    if !take(cookie, name, found) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether no name leads anywhere. If no stripe is locked, that may change at once.
    pub(crate) fn is_empty(&self) -> bool {
        let mut empty = true;
        let all = self.stripes.iter().flat_map(|stripe| stripe.chains.all());
        for name in all.flat_map(Stripe::names) {
            empty &= name.target.load(Ordering::Acquire) == 0;
        }
        empty
    }

    /// Names, those that lead nowhere among them.
    pub(crate) fn len(&mut self) -> usize {
        self.stripes.iter_mut().map(|stripe| *stripe.chained.get_mut() as usize).sum()
    }

    /// Locks stripes, which are in ascending order.
    pub(crate) fn lock(&self, stripe: usize) -> MutexGuard<'_, Inside> {
        lock(&self.stripes[stripe])
    }

    /// Numbers of all stripes.
    pub(crate) fn all(&self) -> std::ops::Range<usize> {
        0..self.stripes.len()
    }

    /// Lets readers of a stripe wait until [`Stripes::end`]. The caller has locked it, here and below.
    pub(crate) fn begin(&self, stripe: usize) {
        self.stripes[stripe].version.begin();
    }

    pub(crate) fn end(&self, stripe: usize) {
        self.stripes[stripe].version.end();
    }

    /// The times of the directory become those of a change, which brought some subdirectories.
    pub(crate) fn touch(&self, stripe: usize, time: Timestamp, subdirectories: i32) {
        let stripe = &self.stripes[stripe];
        let time = pack(time);
        if stripe.time.load(Ordering::Relaxed) < time {
            stripe.time.store(time, Ordering::Relaxed);
        }
        if subdirectories != 0 {
            let before = stripe.subdirectories.load(Ordering::Relaxed);
            let after = before.wrapping_add_signed(subdirectories);
            stripe.subdirectories.store(after, Ordering::Relaxed);
        }
    }

    /// The last change of a name since the directory was read, and how many subdirectories came since.
    pub(crate) fn changes(&self) -> (Option<Timestamp>, i32) {
        let (mut last, mut all) = (None, 0_i32);
        for stripe in &self.stripes {
            let (time, subdirectories) = stripe
                .version
                .read(|| (stripe.time(), stripe.subdirectories.load(Ordering::Relaxed)));
            last = last.max(time);
            all = all.wrapping_add(subdirectories.cast_signed());
        }
        (last, all)
    }

    /// Forgets what [`Stripes::changes`] says: the inode has it now. The caller is alone.
    pub(crate) fn forget_changes(&self) {
        for stripe in &self.stripes {
            stripe.time.store(0, Ordering::Relaxed);
            stripe.subdirectories.store(0, Ordering::Relaxed);
        }
    }

    /// Whether there is a cookie for a name that is not there.
    pub(crate) fn has_cookie(&self, name: &[u8]) -> bool {
        self.free_cookie(self.first_cookie(name)).is_some()
    }

    fn free_cookie(&self, first: u64) -> Option<u64> {
        let chain = self.stripes[stripe_of(first)].chain(first);
        let mut taken: Vec<u64> = Stripe::names(chain)
            .filter(|name| name.target.load(Ordering::Relaxed) != 0)
            .map(|name| name.cookie)
            .filter(|cookie| (first..first + (1 << TIE_BITS)).contains(cookie))
            .collect();
        taken.sort_unstable();
        let free = (first..).zip(&taken).find(|(free, taken)| free != *taken);
        let free = free.map_or(first + taken.len() as u64, |(free, _)| free);
        (free < first + (1 << TIE_BITS)).then_some(free)
    }

    /// Lets a name lead to an inode; `false` if there is no cookie for it. Returns whether its chain is long now.
    /// The caller has its stripe's lock.
    pub(crate) fn put(&self, _locked: &mut Inside, name: &[u8], found: Found) -> Option<bool> {
        let first = self.first_cookie(name);
        let stripe = &self.stripes[stripe_of(first)];
        if let Some(there) = self.probe(first, name) {
            there.target.store(found.word(), Ordering::Release);
            return Some(false);
        }
        let cookie = self.free_cookie(first)?;
        // One that went may come back, if its cookie is the free one.
        let old = |one: &&Name| one.cookie == cookie && *one.name == *name;
        if let Some(old) = Stripe::names(stripe.chain(first)).find(old) {
            old.target.store(found.word(), Ordering::Release);
        } else {
            append(stripe, cookie, name.into(), found);
        }
        let chained = stripe.chained.load(Ordering::Relaxed) as usize;
        Some(chained > MOST_IN_CHAIN * stripe.chains.all().len())
    }

    /// Lets a name lead nowhere.
    pub(crate) fn take(&self, name: &[u8]) -> Option<Found> {
        let there = self.probe(self.first_cookie(name), name)?;
        Found::of(there.target.swap(0, Ordering::AcqRel))
    }
}

/// A stripe fills its cache line and touches no other.
const _: () = assert!(cfg!(feature = "shuttle") || size_of::<Stripe>() == 64);

fn lock(stripe: &Stripe) -> MutexGuard<'_, Inside> {
    // A panic in a change ends all changes.
    stripe.lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a name to its chain, which nobody else does meanwhile.
fn append(stripe: &Stripe, cookie: u64, name: Box<[u8]>, found: Found) {
    let target = AtomicU64::new(found.word());
    let new = Box::new(Name { cookie, name, target, next: OnceLock::new() });
    let mut link = stripe.chain(cookie);
    while let Some(name) = link.get() {
        link = &name.next;
    }
    // The caller has the lock, so the end of the chain is still its end.
    let _ = link.set(new);
    stripe.chained.store(stripe.chained.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
