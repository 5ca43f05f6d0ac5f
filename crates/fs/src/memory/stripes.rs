//! The names of a directory in memory, which readers look up without writing anything, and which threads that work on
//! different names change at the same time.
//!
//! Names lie in stripes by the first bits of their hash, so stripes in their order have the names in the order of cookies. A
//! change locks the stripes of its names, and no others. The times and the subdirectories of the directory are kept by stripe,
//! too, so that changes of different stripes share no memory. A stripe has two cache lines: one with what says which names are
//! there, and one that each change writes, with where names lead.
//!
//! A name that goes stays in its chain, as one that leads nowhere, until somebody who is alone builds the directory anew.
//!
//! A directory without names has no stripes. The first name makes them, or its removal sees to it that nobody will; one of
//! the two is first.

use floe_format::InodeNr;
use floe_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::apart::Apart;
use super::chains::{Chain, Chains, Name, Room};
pub(crate) use super::chains::{Found, Inside, Seen, Sort};
use super::pages::{pack, unpack};
use super::record::Stamp;
use super::short::Short;
use super::status::Version;
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
    /// `None` once the directory went without ever having had any.
    stripes: OnceLock<Option<Box<[Stripe]>>>,
}

/// A name with the first of the cookies that it can have: a hash, which takes as long as all the rest of a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'n> {
    first: u64,
    name: &'n [u8],
}

impl Key<'_> {
    fn ties(&self) -> std::ops::Range<u64> {
        self.first..self.first + (1 << TIE_BITS)
    }

    fn stripe(&self) -> usize {
        stripe_of(self.first)
    }
}

/// A stripe of a directory that a change locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'s> {
    /// The directory and the number of the stripe: stripes are locked in this order.
    pub(crate) place: (InodeNr, usize),
    names: &'s Stripes,
    stripe: &'s Stripe,
}

impl<'s> Spot<'s> {
    pub(crate) fn lock(&self) -> MutexGuard<'s, Inside> {
        lock(self.stripe)
    }

    /// When the directory was created, if memory saw that.
    pub(crate) const fn born(&self) -> Stamp {
        self.names.born
    }

    /// Where a name may be put; `None` if all its cookies are taken. The caller has the lock.
    pub(crate) fn room(&self, key: Key<'_>) -> Option<Room<'s>> {
        self.stripe.room(key)
    }

    /// Lets a name lead to an inode of this sort; `flagged` counts changes of flags. Returns whether its chain is long now.
    pub(crate) fn put(
        &self,
        locked: &mut Inside,
        room: Room<'_>,
        key: Key<'_>,
        (found, sort, flagged): (Found, Sort, u32),
    ) -> bool {
        let stripe = self.stripe;
        match room {
            Room::Known { name, leads } => {
                stripe.target(name).store(found.word(), Ordering::Release);
                let word = sort.word(flagged);
                // Where the sort is known, that of what is replaced is the same.
                if !leads || sort == Sort::Any {
                    name.sort.store(word, Ordering::Release);
                }
                if leads {
                    return false;
                }
            }
            Room::Behind { end, cookie } => {
                let new = (cookie, key.name.into());
                append(stripe, locked, end, new, (found, sort, flagged));
            }
        }
        let chained = stripe.kept.chained.load(Ordering::Relaxed) as usize;
        chained > MOST_IN_CHAIN * stripe.chains.all().len()
    }

    /// Lets readers of the stripe wait until [`Spot::end`]. The caller has locked it, here and below.
    pub(crate) fn begin(&self) {
        self.stripe.kept.version.begin();
    }

    /// The same for those who ask which names there are, until [`Spot::end_names`].
    pub(crate) fn begin_names(&self) {
        self.stripe.version.begin();
    }

    pub(crate) fn end(&self) {
        self.stripe.kept.version.end();
    }

    pub(crate) fn end_names(&self) {
        self.stripe.version.end();
    }

    /// The times of the directory become those of a change, which brought some subdirectories.
    pub(crate) fn touch(&self, time: Timestamp, subdirectories: i32) {
        let (stripe, time) = (&self.stripe.kept, pack(time));
        if stripe.time.load(Ordering::Relaxed) < time {
            stripe.time.store(time, Ordering::Relaxed);
        }
        if subdirectories != 0 {
            let before = stripe.subdirectories.load(Ordering::Relaxed);
            let after = before.wrapping_add_signed(subdirectories);
            stripe.subdirectories.store(after, Ordering::Relaxed);
        }
    }
}

/// One stripe, on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Stripe {
    /// Changes with the names that there are.
    version: Version,
    chains: Chains,
    kept: Apart<Kept>,
}

/// The part of a stripe that each change writes.
#[derive(Debug, Default)]
struct Kept {
    lock: Mutex<Inside>,
    /// Changes with where names lead, and with the fields below.
    version: Version,
    /// The last change of a name here, packed; 0 for none since the directory was read.
    time: AtomicU64,
    /// How many subdirectories came.
    subdirectories: AtomicU32,
    /// Names, those that lead nowhere among them. Only the holder of the lock changes it.
    chained: AtomicU32,
    /// Where the first name leads.
    first: AtomicU64,
}

/// The first bits of the hash in a cookie, which has 63.
const fn stripe_of(cookie: u64) -> usize {
    (cookie >> (63 - STRIPES.ilog2())) as usize & (STRIPES - 1)
}

impl Stripe {
    fn new(chains: usize) -> Self {
        let (version, kept) = (Version::default(), Apart::default());
        Self { version, chains: Chains::new(chains), kept }
    }

    /// Where the target of a name lies.
    fn target<'s>(&'s self, name: &'s Name) -> &'s AtomicU64 {
        name.line.as_ref().map_or(&self.kept.first, |line| &line[usize::from(name.at)])
    }

    /// The cookie of a name, itself, and where it leads to; `None` if that is nowhere.
    fn seen<'s>(&'s self, name: &'s Name) -> Option<(u64, &'s [u8], Found)> {
        let found = Found::of(self.target(name).load(Ordering::Acquire))?;
        Some((name.cookie, &name.name, found))
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
        unpack(self.kept.time.load(Ordering::Relaxed))
    }
}

impl Stripes {
    /// An empty directory.
    pub(crate) const fn new(hash: NameHash, parent: InodeNr, born: Stamp) -> Self {
        let parent = AtomicU32::new(parent.0);
        Self { hash, parent, born, counted: true, stripes: OnceLock::new() }
    }

    /// The stripes that there are.
    fn some(&self) -> &[Stripe] {
        self.stripes.get().and_then(Option::as_deref).unwrap_or_default()
    }

    /// All stripes; none of a directory that is gone.
    fn opened(&self) -> &[Stripe] {
        let new = || Some((0..STRIPES).map(|_| Stripe::new(1)).collect());
        self.stripes.get_or_init(new).as_deref().unwrap_or_default()
    }

    /// Whether it has no stripes: nobody ever gave it a name.
    pub(crate) fn is_bare(&self) -> bool {
        self.some().is_empty()
    }

    /// Sees to it that nobody gives it a name any more; `false` if somebody did.
    pub(crate) fn seal(&self) -> bool {
        self.stripes.get_or_init(|| None).is_none()
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
            (cookie, Short::from(&*entry.name), Found { inode: entry.inode, kind: entry.kind })
        }));
        all
    }

    /// Replaces all names.
    fn build(&mut self, names: impl Iterator<Item = (u64, Short, Found)>) {
        let names: Vec<_> = names.collect();
        if !names.is_empty() {
            self.opened();
        }
        let chains = (names.len() / STRIPES / FEW_IN_CHAIN).next_power_of_two();
        for stripe in self.some_mut() {
            stripe.chains = Chains::new(chains);
            *stripe.kept.chained.get_mut() = 0;
            lock(stripe).targets = None;
        }
        for (cookie, name, found) in names {
            if let Some(stripe) = self.some().get(stripe_of(cookie)) {
                let end = Stripe::names(stripe.chain(cookie)).last();
                let end = end.map_or_else(|| stripe.chain(cookie), |last| &last.next);
                append(stripe, &mut lock(stripe), end, (cookie, name), (found, Sort::Any, 0));
            }
        }
    }

    /// Drops names that lead nowhere, and makes room for more.
    pub(crate) fn rebuild(&mut self) {
        let mut names = Vec::new();
        self.each_behind(0, &mut |cookie, name, found| {
            names.push((cookie, Short::from(name), found));
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

    fn some_mut(&mut self) -> &mut [Stripe] {
        self.stripes.get_mut().and_then(Option::as_deref_mut).unwrap_or_default()
    }

    /// A name, for look-ups and changes in this file system.
    pub(crate) fn key<'n>(&self, name: &'n [u8]) -> Key<'n> {
        Key { first: self.hash.cookie(name).max(AFTER_DOT_DOT + 1), name }
    }

    /// The stripe of a name; `None` if the directory is gone.
    pub(crate) fn spot(&self, directory: InodeNr, key: Key<'_>) -> Option<Spot<'_>> {
        let number = key.stripe();
        let stripe = self.opened().get(number)?;
        Some(Spot { place: (directory, number), names: self, stripe })
    }

    /// All stripes of a directory that has some.
    pub(crate) fn spots(&self, directory: InodeNr) -> impl Iterator<Item = Spot<'_>> {
        let all = self.some().iter().enumerate();
        all.map(move |(number, stripe)| Spot { place: (directory, number), names: self, stripe })
    }

    /// The same, of any directory.
    pub(crate) fn opened_spots(&self, directory: InodeNr) -> impl Iterator<Item = Spot<'_>> {
        self.opened();
        self.spots(directory)
    }

    fn probe<'s>(stripe: &'s Stripe, key: Key<'_>) -> Option<&'s Name> {
        // The cookie first: the bytes of a long name lie elsewhere.
        let same = |one: &&Name| {
            let same = key.ties().contains(&one.cookie) && *one.name == *key.name;
            same && one.leads()
        };
        Stripe::names(stripe.chain(key.first)).find(same)
    }

    /// Where a name leads to.
    pub(crate) fn find(&self, key: Key<'_>) -> Option<Found> {
        self.see(key).map(|seen| seen.found)
    }

    /// The same, to find out later whether it leads there still.
    pub(crate) fn see(&self, key: Key<'_>) -> Option<Seen<'_>> {
        let stripe = self.some().get(key.stripe())?;
        stripe.kept.version.read(|| {
            let name = Self::probe(stripe, key)?;
            let target = stripe.target(name);
            let found = Found::of(target.load(Ordering::Acquire))?;
            Some(Seen { name, target, found })
        })
    }

    /// The sort of inode that a name leads to; `None` if it leads nowhere. `flagged` counts changes of flags. Does not look at
    /// where it leads, which may change meanwhile.
    pub(crate) fn sort(&self, key: Key<'_>, flagged: u32) -> Option<Sort> {
        let stripe = self.some().get(key.stripe())?;
        stripe.version.read(|| {
            let name = Self::probe(stripe, key)?;
            Sort::of_word(name.sort.load(Ordering::Acquire), flagged)
        })
    }

    /// Whether a name leads somewhere.
    pub(crate) fn has(&self, key: Key<'_>) -> bool {
        self.sort(key, 0).is_some()
    }

    /// Calls `take` for each name behind a cookie, in their order, until it returns `false`.
    pub(crate) fn each_behind(&self, cookie: u64, take: &mut dyn FnMut(u64, &[u8], Found) -> bool) {
        let from = cookie.max(AFTER_DOT_DOT);
        let first = stripe_of(from);
        for (at, stripe) in self.some().iter().enumerate().skip(first) {
            let skipped = if at == first { stripe.chain_number(from) } else { 0 };
            for chain in stripe.chains.all().iter().skip(skipped) {
                let mut names: Vec<(u64, &[u8], Found)> = stripe.kept.version.read(|| {
                    let names = Stripe::names(chain).filter(|name| name.cookie > from);
                    names.filter_map(|name| stripe.seen(name)).collect()
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
        let all = self.some().iter().flat_map(|stripe| stripe.chains.all());
        for name in all.flat_map(Stripe::names) {
            empty &= !name.leads();
        }
        empty
    }

    /// Names, those that lead nowhere among them.
    pub(crate) fn len(&mut self) -> usize {
        self.some_mut().iter_mut().map(|stripe| *stripe.kept.chained.get_mut() as usize).sum()
    }

    /// Names of the longest chain.
    #[cfg(test)]
    pub(crate) fn longest_chain(&self) -> usize {
        let chains = self.some().iter().flat_map(|stripe| stripe.chains.all());
        chains.map(|chain| Stripe::names(chain).count()).max().unwrap_or_default()
    }

    /// The last change of a name since the directory was read, and how many subdirectories came since.
    pub(crate) fn changes(&self) -> (Option<Timestamp>, i32) {
        let (mut last, mut all) = (None, 0_i32);
        for stripe in self.some() {
            let kept = &stripe.kept;
            let (time, subdirectories) =
                kept.version.read(|| (stripe.time(), kept.subdirectories.load(Ordering::Relaxed)));
            last = last.max(time);
            all = all.wrapping_add(subdirectories.cast_signed());
        }
        (last, all)
    }

    /// Forgets what [`Stripes::changes`] says: the inode has it now. The caller is alone.
    pub(crate) fn forget_changes(&self) {
        for stripe in self.some() {
            stripe.kept.time.store(0, Ordering::Relaxed);
            stripe.kept.subdirectories.store(0, Ordering::Relaxed);
        }
    }

    /// Lets a name lead nowhere. The caller is alone.
    pub(crate) fn take(&self, key: Key<'_>) -> Option<Found> {
        let seen = self.see(key)?;
        seen.lose(&mut lock(self.some().get(key.stripe())?));
        Some(seen.found)
    }
}

impl Stripe {
    /// Where a name may be put; `None` if all its cookies are taken.
    fn room<'s>(&'s self, key: Key<'_>) -> Option<Room<'s>> {
        let (mut taken, mut gone) = (Vec::new(), Vec::new());
        let mut end = self.chain(key.first);
        while let Some(name) = end.get() {
            end = &name.next;
            if !key.ties().contains(&name.cookie) {
                continue;
            }
            let (leads, same) = (name.leads(), *name.name == *key.name);
            match (leads, same) {
                (true, true) => return Some(Room::Known { name, leads }),
                (true, false) => taken.push(name.cookie),
                (false, true) => gone.push(name),
                (false, false) => {}
            }
        }
        taken.sort_unstable();
        let free = (key.first..).zip(&taken).find(|(free, taken)| free != *taken);
        let cookie = free.map_or(key.first + taken.len() as u64, |(free, _)| free);
        if !key.ties().contains(&cookie) {
            return None;
        }
        // One that went may come back, if its cookie is the free one.
        let old = gone.into_iter().find(|one| one.cookie == cookie);
        Some(old.map_or(Room::Behind { end, cookie }, |name| Room::Known { name, leads: false }))
    }
}

/// A stripe fills two cache lines and touches no other.
const _: () = assert!(cfg!(feature = "shuttle") || size_of::<Stripe>() == 128);

fn lock(stripe: &Stripe) -> MutexGuard<'_, Inside> {
    // A panic in a change ends all changes.
    stripe.kept.lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a name at the end of its chain, which nobody else does meanwhile.
fn append(
    stripe: &Stripe,
    locked: &mut Inside,
    end: &Chain,
    (cookie, name): (u64, Short),
    (found, sort, flagged): (Found, Sort, u32),
) {
    let chained = stripe.kept.chained.load(Ordering::Relaxed);
    let (line, at) = locked.next_target(chained as usize);
    let sort = AtomicU32::new(sort.word(flagged));
    let name = Box::new(Name { cookie, name, line, next: OnceLock::new(), sort, at });
    stripe.target(&name).store(found.word(), Ordering::Release);
    // The caller has the lock, so the end of the chain is still its end.
    let _ = end.set(name);
    stripe.kept.chained.store(chained + 1, Ordering::Relaxed);
}
