//! Fingerprint accounting: cross-checks by random sums instead of lists (`docs/fingerprint.md`,
//! which has the proof and the bound).
//!
//! Each group has three wrapping sums of 128 bits. A claim of an object adds a random number that
//! belongs to the object, and the on-disk record of it subtracts the same number. The sum is zero
//! if both agree; otherwise it is zero only with a probability of less than 2^-94.

use std::collections::BTreeSet;

use floe_exec::Accumulator;
use floe_format::ext::inode::FileType;
use floe_format::{Geometry, GroupNr, InodeNr};
use floe_sync::Arc;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

use super::inode_facts::Facts;
use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// The random numbers of one run. Shards that are to be merged share the key.
#[derive(Debug, PartialEq, Eq)]
pub struct Tables {
    /// A run of clusters `s..e` of a group counts as `clusters[e] - clusters[s]`.
    clusters: Vec<u128>,
    /// A run of inodes `s..e` of a group counts as `inodes[e] - inodes[s]`.
    inodes: Vec<u128>,
    /// A link to inode `at` of a group, as one of type `kind`, counts as `links[at] * kinds[kind]`.
    links: Vec<u128>,
    kinds: [u128; KINDS],
}

/// Types of inodes, numbered as in directory entries; 0 is none.
const KINDS: usize = 8;

impl Tables {
    /// Draws the numbers for a file system from a key that nobody can guess who made the file system.
    pub fn new(geometry: &Geometry, key: [u8; 16]) -> Arc<Self> {
        let column = |domain: u64, len: usize| products(&key, domain, len);
        let inodes = geometry.inodes_per_group as usize + 1;
        let kinds = std::array::from_fn(|kind| random(&key, 3, kind as u64));
        Arc::new(Self {
            clusters: column(0, geometry.clusters_per_group as usize + 1),
            inodes: column(1, inodes),
            links: column(2, inodes),
            kinds,
        })
    }

    /// Clusters of a group.
    #[inline]
    fn clusters_per_group(&self) -> u64 {
        self.clusters.len() as u64 - 1
    }

    /// Inodes of a group.
    #[inline]
    fn inodes_per_group(&self) -> u32 {
        // Made from a number of 32 bits.
        (self.inodes.len() - 1) as u32
    }

    /// The group of an inode, and its place in it. Inode 0 has none.
    #[inline]
    fn place_of(&self, inode: InodeNr) -> Option<(u32, u32)> {
        let index = inode.0.checked_sub(1)?;
        let per_group = self.inodes_per_group().max(1);
        Some((index / per_group, index % per_group))
    }

    /// The parts of a run of clusters that lie in one group each, with their groups.
    #[inline]
    pub fn pieces(&self, start: u64, len: u64) -> impl Iterator<Item = (u32, Piece)> + use<> {
        let per_group = self.clusters_per_group().max(1);
        let (mut at, end) = (start, start.saturating_add(len));
        std::iter::from_fn(move || {
            let (cluster, from) = (at, at % per_group);
            let to = (from + (end - at)).min(per_group);
            at += to - from;
            // A cluster of the file system: its group has a number of 32 bits.
            (cluster < end).then_some(((cluster / per_group) as u32, Piece { cluster, from, to }))
        })
    }

    /// The term of a run of clusters of one group.
    #[inline]
    pub(crate) fn of_clusters(&self, piece: &Piece) -> u128 {
        of_run(&self.clusters, piece.from, piece.to)
    }

    /// A number for a cluster, by its place in its group, that no sum of runs takes away.
    pub(crate) fn of_cluster(&self, at: u64) -> u128 {
        self.links.get(at as usize % self.links.len().max(1)).copied().unwrap_or(1) | 1
    }

    /// The term of the runs of set bits of a block bitmap.
    pub fn cluster_bits(&self, words: impl Iterator<Item = u64>, bits: u32) -> u128 {
        sum_of_runs(&self.clusters, words, bits)
    }

    /// The term of the runs of set bits of an inode bitmap.
    pub fn inode_bits(&self, words: impl Iterator<Item = u64>, bits: u32) -> u128 {
        sum_of_runs(&self.inodes, words, bits)
    }
}

/// A part of a run of clusters that lies in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first cluster, counted as in all claims.
    pub cluster: u64,
    /// Its place in its group.
    pub from: u64,
    /// The place behind the last one.
    pub to: u64,
}

/// Places that share a factor.
const SPAN: usize = 256;

/// The numbers of a column: each the product of a random number of its span and one of its place in the span. A random
/// number for each place would take a shard of a small file system longer than its inodes, and proves little more.
fn products(key: &[u8; 16], domain: u64, len: usize) -> Vec<u128> {
    let numbers = |domain: u64, len: usize| (0..len as u64).map(move |at| random(key, domain, at));
    let of_place: Vec<u128> = numbers(domain, len.min(SPAN)).collect();
    let mut products = Vec::with_capacity(len.next_multiple_of(SPAN));
    for span in numbers(domain + SPANS, len.div_ceil(SPAN)) {
        products.extend(of_place.iter().map(|place| span.wrapping_mul(*place)));
    }
    products.truncate(len);
    products
}

/// Numbers of spans have other domains than those of places.
const SPANS: u64 = 16;

fn random(key: &[u8; 16], domain: u64, at: u64) -> u128 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&domain.to_le_bytes());
    hasher.write(&at.to_le_bytes());
    hasher.finish128().as_u128()
}

/// The term of a run; bits past the end of the table add nothing.
#[inline]
fn of_run(table: &[u128], from: u64, to: u64) -> u128 {
    match (table.get(from as usize), table.get(to as usize)) {
        (Some(from), Some(to)) => to.wrapping_sub(*from),
        _ => 0,
    }
}

fn sum_of_runs(table: &[u128], words: impl Iterator<Item = u64>, bits: u32) -> u128 {
    let (mut sum, mut open) = (0u128, None);
    for (word, base) in words.zip((0..u64::from(bits)).step_by(64)) {
        let left = u64::from(bits) - base;
        let word = if left < 64 { word & ((1 << left) - 1) } else { word };
        // Where set bits begin or end in the word; the common ones do neither.
        let mut at = 0;
        while at < 64 {
            let rest = if open.is_some() { !(word >> at) } else { word >> at };
            let skip = u64::from(rest.trailing_zeros());
            if at + skip >= 64 {
                break;
            }
            at += skip;
            match open.take() {
                Some(from) => sum = sum.wrapping_add(of_run(table, from, base + at)),
                None => open = Some(base + at),
            }
        }
    }
    match open {
        Some(from) => sum.wrapping_add(of_run(table, from, u64::from(bits))),
        None => sum,
    }
}

/// Groups of a page of sums.
const PAGE: usize = 64;

/// One sum a group; memory only where something was added.
#[derive(Clone, Debug, Default)]
pub struct GroupSums {
    pages: Vec<Option<Box<[u128; PAGE]>>>,
}

impl GroupSums {
    /// Adds to the sum of a group.
    #[inline]
    pub fn add(&mut self, group: u32, value: u128) {
        let (page, at) = (group as usize / PAGE, group as usize % PAGE);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let sums = self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]));
        sums[at] = sums[at].wrapping_add(value);
    }

    /// The groups whose sum is not zero, ascending, with their sums.
    pub(crate) fn not_zero(&self) -> impl Iterator<Item = (GroupNr, u128)> {
        self.pages
            .iter()
            .enumerate()
            .flat_map(|(page, sums)| {
                let sums = sums.iter().flat_map(|sums| sums.iter().copied());
                // Fewer groups than 2^32.
                (0..).zip(sums).map(move |(at, sum)| (GroupNr((page * PAGE) as u32 + at), sum))
            })
            .filter(|(_, sum)| *sum != 0)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let pages = self.pages.iter().flatten().count();
        pages * size_of::<[u128; PAGE]>() + self.pages.len() * size_of::<usize>()
    }
}

impl Accumulator for GroupSums {
    fn merge(&mut self, other: Self) {
        let Self { pages } = other;
        if self.pages.len() < pages.len() {
            self.pages.resize_with(pages.len(), || None);
        }
        for (mine, theirs) in self.pages.iter_mut().zip(pages) {
            match (mine, theirs) {
                (Some(mine), Some(theirs)) => {
                    for (mine, theirs) in mine.iter_mut().zip(*theirs) {
                        *mine = mine.wrapping_add(theirs);
                    }
                }
                (mine, theirs @ Some(_)) => *mine = theirs,
                (_, None) => {}
            }
        }
    }
}

/// All sums of a scan, or of a part of it: parts are merged in any order, and made anywhere.
#[derive(Clone, Debug, Default)]
pub struct PartialSums {
    /// Clusters claimed, less those that bitmaps mark.
    pub clusters: GroupSums,
    /// Inodes in use, less those that bitmaps mark.
    pub inodes: GroupSums,
    /// Names of inodes, less the links that they say they have.
    pub links: GroupSums,
    /// Groups that need a closer look whatever their sums: something in them is no plain case.
    pub doubtful: BTreeSet<u32>,
    /// Used inodes and directories of each group, as (group, used, directories). In no order.
    pub counts: Vec<(u32, u32, u32)>,
}

impl Accumulator for PartialSums {
    fn merge(&mut self, other: Self) {
        let Self { clusters, inodes, links, mut doubtful, mut counts } = other;
        self.clusters.merge(clusters);
        self.inodes.merge(inodes);
        self.links.merge(links);
        self.doubtful.append(&mut doubtful);
        self.counts.append(&mut counts);
    }
}

impl PartialSums {
    /// Notes the inodes of a part of a group's table, the first of which has index `first`.
    pub(crate) fn note_inodes(
        &mut self,
        tables: &Tables,
        group: GroupNr,
        first: u32,
        facts: &[Facts],
        links: &[u16],
    ) {
        let mut by_kind = [0u128; KINDS];
        let (mut used, mut open, mut sum) = (0, None, 0u128);
        let numbers = tables.links.get(first as usize..).unwrap_or(&[]);
        for ((at, facts), (links, number)) in (first..).zip(facts).zip(links.iter().zip(numbers)) {
            let counts = facts.is_used() || facts.is_bad();
            match (counts, open) {
                (true, None) => open = Some(at),
                (false, Some(from)) => {
                    sum = sum.wrapping_add(of_run(&tables.inodes, u64::from(from), u64::from(at)));
                    open = None;
                }
                _ => {}
            }
            used += u32::from(counts);
            match facts.plain_type() {
                Some(kind) => {
                    let sum = &mut by_kind[kind as usize];
                    *sum = sum.wrapping_sub(number.wrapping_mul(u128::from(*links)));
                }
                None if counts => _ = self.doubtful.insert(group.0),
                None => {}
            }
        }
        if let Some(from) = open {
            let end = u64::from(first) + facts.len() as u64;
            sum = sum.wrapping_add(of_run(&tables.inodes, u64::from(from), end));
        }
        if used > 0 {
            let dirs = facts.iter().filter(|facts| facts.is_dir()).count();
            // No more than the inodes of a group.
            self.counts.push((group.0, used, dirs as u32));
            self.inodes.add(group.0, sum);
            self.links.add(group.0, tables.of_kinds(&by_kind));
        }
    }

    /// The number of directories of each group; emptied.
    pub(crate) fn take_dirs(&mut self, geometry: &Geometry) -> Vec<u32> {
        let counts = std::mem::take(&mut self.counts);
        let mut dirs = Vec::new();
        if !counts.is_empty() {
            dirs.resize(geometry.group_count as usize, 0);
        }
        for (group, _, of_part) in counts {
            if let Some(sum) = dirs.get_mut(group as usize) {
                *sum += of_part;
            }
        }
        dirs
    }

    /// The groups whose clusters the sums do not prove to be claimed once, and marked.
    pub(crate) fn suspect_clusters(&self) -> BTreeSet<GroupNr> {
        self.not_proved(&[&self.clusters])
    }

    /// The groups whose inodes the sums do not prove to be marked, and named as often as they say.
    pub(crate) fn suspect_inodes(&self) -> BTreeSet<GroupNr> {
        self.not_proved(&[&self.inodes, &self.links])
    }

    fn not_proved(&self, sums: &[&GroupSums]) -> BTreeSet<GroupNr> {
        let not_zero = sums.iter().flat_map(|sums| sums.not_zero()).map(|(group, _)| group);
        not_zero.chain(self.doubtful.iter().copied().map(GroupNr)).collect()
    }
}

impl Saved for GroupSums {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put(self.not_zero().count() as u64);
        let mut last = 0;
        for (group, sum) in self.not_zero() {
            to.put_step(&mut last, group.0.into());
            sum.save(to);
        }
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let (mut all, mut last) = (Self::default(), 0);
        for _ in 0..from.number()? {
            let group = from.step(&mut last)?;
            let inside = u32::try_from(group).ok().filter(|group| *group < from.bounds.groups);
            let group = inside.ok_or(Fault::Damaged)?;
            all.add(group, Saved::load(from)?);
        }
        Ok(all)
    }
}

impl Saved for PartialSums {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { clusters, inodes, links, doubtful, counts } = self;
        [clusters, inodes, links].into_iter().for_each(|sums| sums.save(to));
        to.put_rows(
            doubtful.iter().copied().collect::<Vec<_>>().iter().map(|&group| [group.into()]),
        );
        to.put_rows(
            counts.iter().map(|&(group, used, dirs)| [group.into(), used.into(), dirs.into()]),
        );
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let clusters = Saved::load(from)?;
        let inodes = Saved::load(from)?;
        let links = Saved::load(from)?;
        let groups = from.bounds.groups;
        let inside = |group| cell(group).filter(|group| *group < groups);
        let doubtful = from.rows(|[group]| inside(group))?.into_iter().collect();
        let counts =
            from.rows(|[group, used, dirs]| Some((inside(group)?, cell(used)?, cell(dirs)?)))?;
        Ok(Self { clusters, inodes, links, doubtful, counts })
    }
}

impl Tables {
    fn of_kinds(&self, by_kind: &[u128; KINDS]) -> u128 {
        let products = by_kind.iter().zip(&self.kinds).map(|(sum, kind)| sum.wrapping_mul(*kind));
        products.fold(0, u128::wrapping_add)
    }
}

/// Adds the links that entries of directories are. Entries of one directory mostly name inodes of one
/// group, so what concerns the group at hand is kept apart.
#[derive(Debug)]
pub struct LinkAdder<'t> {
    tables: &'t Tables,
    group: u32,
    /// First inode of the group at hand.
    first: u32,
    by_kind: [u128; KINDS],
}

impl<'t> LinkAdder<'t> {
    /// Nothing yet.
    pub const fn new(tables: &'t Tables) -> Self {
        // Inode 0 is in no group.
        Self { tables, group: 0, first: 1, by_kind: [0; KINDS] }
    }

    /// Adds one link to an inode as one of this type.
    #[inline]
    pub fn add(&mut self, sums: &mut GroupSums, inode: InodeNr, kind: FileType) {
        let mut at = inode.0.wrapping_sub(self.first);
        if at >= self.tables.inodes_per_group() {
            self.flush(sums);
            let Some((group, place)) = self.tables.place_of(inode) else { return };
            (self.group, self.first, at) = (group, inode.0 - place, place);
        }
        let number = self.tables.links.get(at as usize).copied().unwrap_or(0);
        let sum = &mut self.by_kind[kind as usize];
        *sum = sum.wrapping_add(number);
    }

    /// Adds what was kept apart to `sums`: to be called at the end.
    pub fn flush(&mut self, sums: &mut GroupSums) {
        let by_kind = std::mem::replace(&mut self.by_kind, [0; KINDS]);
        if by_kind != [0; KINDS] {
            sums.add(self.group, self.tables.of_kinds(&by_kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tables of groups of `clusters` clusters and `inodes` inodes.
    fn tables(clusters: usize, inodes: usize) -> Tables {
        let column = |domain, len| (0..len as u64).map(|at| random(&[7; 16], domain, at)).collect();
        Tables {
            clusters: column(0, clusters + 1),
            inodes: column(1, inodes + 1),
            links: column(2, inodes + 1),
            kinds: std::array::from_fn(|kind| random(&[7; 16], 3, kind as u64)),
        }
    }

    fn words(bits: &[bool]) -> Vec<u64> {
        let word =
            |bits: &[bool]| bits.iter().rev().fold(0u64, |word, &bit| word << 1 | u64::from(bit));
        bits.chunks(64).map(word).collect()
    }

    proptest! {
        /// Runs of any length give what their bits give one by one; other bits are seen.
        #[test]
        fn bitmaps_and_claims_cancel(
            bits in proptest::collection::vec(any::<bool>(), 1..300),
            flipped in 0usize..300,
        ) {
            let tables = tables(bits.len(), 1);
            let mut sums = PartialSums::default();
            let mut at = 0;
            for run in bits.chunk_by(|left, right| left == right) {
                if run[0] {
                    for (group, piece) in tables.pieces(at, run.len() as u64) {
                        sums.clusters.add(group, tables.of_clusters(&piece));
                    }
                }
                at += run.len() as u64;
            }
            let of = |bits: &[bool]| tables.cluster_bits(words(bits).into_iter(), bits.len() as u32);
            sums.clusters.add(0, of(&bits).wrapping_neg());
            prop_assert_eq!(sums.suspect_clusters().len() + sums.suspect_inodes().len(), 0);
            let mut other = bits.clone();
            let at = flipped % bits.len();
            other[at] = !other[at];
            prop_assert_ne!(of(&bits), of(&other));
        }

        /// An even number of surplus claims of a run, or names of an inode, is detected; a sum of
        /// bits (exclusive or) would not detect it.
        #[test]
        fn even_multiplicities_do_not_cancel(
            start in 0u64..60,
            len in 1u64..60,
            twice in 1u128..40,
            at in 1u32..100,
            kind in 1u8..8,
        ) {
            let tables = tables(120, 100);
            let (mut sums, run) = (PartialSums::default(), tables.pieces(start, len).next());
            let (group, piece) = run.unwrap();
            let mut adder = LinkAdder::new(&tables);
            for _ in 0..2 * twice {
                sums.clusters.add(group, tables.of_clusters(&piece));
                adder.add(&mut sums.links, InodeNr(at), FileType::of_entry(kind).unwrap());
            }
            adder.flush(&mut sums.links);
            prop_assert_eq!(sums.suspect_clusters().len(), 1);
            prop_assert_eq!(sums.suspect_inodes().len(), 1);
            // Powers of two are the worst: they push the random bits out at the upper end.
            for power in 0..17 {
                let links = tables.links[at as usize - 1].wrapping_mul(tables.kinds[kind as usize]);
                prop_assert_ne!(links.wrapping_mul(1 << power), 0);
            }
        }

        #[test]
        fn runs_are_cut_at_groups(start in 0u64..500, len in 0u64..500, per_group in 1usize..90) {
            let tables = tables(per_group, 1);
            let mut next = start;
            for (group, piece) in tables.pieces(start, len) {
                prop_assert_eq!(piece.cluster, next);
                prop_assert!(piece.from < piece.to && piece.to <= per_group as u64);
                prop_assert_eq!(u64::from(group) * per_group as u64 + piece.from, next);
                next += piece.to - piece.from;
            }
            prop_assert_eq!(next, start + len);
        }

        /// Each inode named as often as it says, as what it is: no residue; else one.
        #[test]
        fn names_and_inodes_cancel(
            inodes in proptest::collection::vec((1u8..=7, 1u16..4), 1..60),
            wrong in any::<proptest::sample::Index>(),
            how in 0u8..3,
        ) {
            let tables = tables(1, inodes.len());
            let facts: Vec<_> =
                inodes.iter().map(|&(kind, _)| Facts::used(FileType::of_entry(kind))).collect();
            let links: Vec<_> = inodes.iter().map(|&(_, links)| links).collect();
            let residue = |wrong: Option<usize>| {
                let mut sums = PartialSums::default();
                sums.note_inodes(&tables, GroupNr(3), 0, &facts, &links);
                let mut adder = LinkAdder::new(&tables);
                let first = 3 * inodes.len() as u32 + 1;
                for (at, &(kind, links)) in inodes.iter().enumerate() {
                    let off = Some(at) == wrong;
                    let times = if off && how == 0 { links - 1 } else { links };
                    let kind = if off && how == 1 { kind % 7 + 1 } else { kind };
                    let place = if off && how == 2 { inodes.len() } else { at };
                    for _ in 0..times {
                        let inode = InodeNr(first + place as u32);
                        adder.add(&mut sums.links, inode, FileType::of_entry(kind).unwrap());
                    }
                }
                adder.flush(&mut sums.links);
                sums.links.not_zero().count()
            };
            prop_assert_eq!(residue(None), 0);
            prop_assert_ne!(residue(Some(wrong.index(inodes.len()))), 0);
        }
    }

    mod of_groups {
        use super::super::*;
        use crate::saved::tests::same;

        floe_exec::accumulator_laws!(
            GroupSums,
            (0u32..300, 0u64..9),
            |all: &mut GroupSums, (group, value): (u32, u64)| all.add(group, value.into()),
            |all: GroupSums| same(all, |all: GroupSums| all.not_zero().collect::<Vec<_>>())
        );
    }

    mod of_parts {
        use super::super::*;
        use crate::saved::tests::same;

        floe_exec::accumulator_laws!(
            PartialSums,
            (0u32..300, 0u32..9),
            |all: &mut PartialSums, (group, value): (u32, u32)| {
                all.clusters.add(group, value.into());
                all.inodes.add(group + 1, value.into());
                all.links.add(group / 2, value.into());
                if value == 7 {
                    all.doubtful.insert(group);
                }
                all.counts.push((group, value, value / 2));
            },
            |all: PartialSums| same(all, |mut all: PartialSums| {
                all.counts.sort_unstable();
                let sums = [&all.clusters, &all.inodes, &all.links];
                (sums.map(|sums| sums.not_zero().collect::<Vec<_>>()), all.doubtful, all.counts)
            })
        );
    }
}
