//! Parts: what one shard of a check found, as a file; and how the parts of all shards become one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use floe_exec::Accumulator;
use floe_format::{BlockRun, InodeNr};

use super::witness::Witness;
use super::{Closer, Header, Judged, MAGIC, START_BYTES, VERSION};
use crate::checks::context::directory::DirEvidence;
use crate::checks::context::inode::InodeEvidence;
use crate::checks::space::bitmaps::Bitmaps;
use crate::error::{PartRefusal, Refusal};
use crate::keeper::{Parts, Round, Share};
use crate::saved::{Bounds, Decoder, Encoder, Fault, Saved};
use crate::volume::Volume;

/// The kind of a part's record. Records of a checkpoint have other kinds.
const fn kind(round: Round) -> u64 {
    match round {
        Round::Shards => 3,
        Round::Inodes => 4,
        Round::Names => 5,
    }
}

/// Bytes of one witness of a part, at most (but at least one block).
const WITNESS_BYTES: u64 = 16 << 10;

/// Everything that a shard finds and keeps, or several of them, merged.
#[derive(Debug, Default)]
pub struct PartEvidence {
    /// Evidence from the inodes of the shard's groups.
    pub inodes: InodeEvidence,
    /// Evidence from the directories among these inodes, where sums prove what entries name. Directories are
    /// identified by their inodes, not by ranks, because no shard knows all of them.
    pub directories: DirEvidence,
    /// Inline directories among them that the merge judges.
    pub left_inline: Vec<InodeNr>,
    /// Evidence from the bitmaps of the shard's groups, where sums prove these.
    pub bitmaps: Bitmaps,
}

impl Accumulator for PartEvidence {
    fn merge(&mut self, other: Self) {
        let Self { inodes, directories, mut left_inline, bitmaps } = other;
        self.inodes.merge(inodes);
        self.directories.merge(directories);
        self.left_inline.append(&mut left_inline);
        self.bitmaps.merge(bitmaps);
    }
}

impl Saved for PartEvidence {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { inodes, directories, left_inline, bitmaps } = self;
        inodes.save(to);
        directories.save(to);
        left_inline.save(to);
        bitmaps.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        all.load_more(from)?;
        Ok(all)
    }

    fn load_more(&mut self, from: &mut Decoder<'_>) -> Result<(), Fault> {
        let Self { inodes, directories, left_inline, bitmaps } = self;
        inodes.load_more(from)?;
        directories.load_more(from)?;
        left_inline.append(&mut Saved::load(from)?);
        bitmaps.load_more(from)
    }
}

/// The evidence of one shard, by its round. A refinement also tells by a hash which groups it took for unproved.
#[derive(Debug)]
pub enum Found {
    /// [`Round::Shards`].
    Shard(Box<PartEvidence>),
    /// [`Round::Inodes`]: facts and claims.
    Inodes(u128, Box<InodeEvidence>),
    /// [`Round::Names`].
    Names(u128, Box<Judged>),
}

impl Found {
    /// The round of the shard.
    pub const fn round(&self) -> Round {
        match self {
            Self::Shard(_) => Round::Shards,
            Self::Inodes(..) => Round::Inodes,
            Self::Names(..) => Round::Names,
        }
    }

    fn save(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Shard(evidence) => evidence.save(to),
            Self::Inodes(suspects, evidence) => {
                suspects.save(to);
                evidence.save(to);
            }
            Self::Names(suspects, evidence) => {
                suspects.save(to);
                evidence.save(to);
            }
        }
    }
}

/// The evidence of one shard of a check, with its header.
#[derive(Debug)]
pub struct Part {
    header: Header,
    share: Share,
    witnesses: Vec<Witness>,
    found: Found,
}

impl Part {
    /// The part of a shard. `header` is that of the check in shards, `places` are the runs of blocks that the shard
    /// read, some of which are read again before parts are merged.
    pub(crate) fn new(
        header: Header,
        share: Share,
        volume: &Volume<'_>,
        places: &[BlockRun],
        found: Found,
    ) -> Self {
        // Short ones, because every shard reads its own once more, and the merge reads some of all.
        let most = (WITNESS_BYTES / u64::from(volume.geometry.block_size)).max(1);
        let place = |at: usize| BlockRun::new(places[at].start, places[at].len_blocks.min(most));
        let witnesses = Witness::some(volume, place, places.len(), &header.key);
        Self { header, share, witnesses, found }
    }

    /// The round that it belongs to.
    pub const fn round(&self) -> Round {
        self.found.round()
    }

    /// Inodes in use in the groups of a shard of the first round, and directories among them.
    pub fn inodes_and_directories(&self) -> Option<(u64, usize)> {
        match &self.found {
            Found::Shard(of) => Some((of.inodes.totals.inodes_used, of.inodes.dirs.infos.len())),
            Found::Inodes(..) | Found::Names(..) => None,
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of writing to `to`.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(MAGIC)?;
        to.write_all(&[VERSION])?;
        let mut encoder = Encoder::new(to, 0);
        self.header.save(&mut encoder);
        let chain = encoder.finish()?;
        let mut encoder = Encoder::new(to, chain);
        encoder.put(kind(self.round()));
        encoder.put(self.share.index().into());
        if self.round() != Round::Shards {
            // The header has the number of shards of the first round.
            encoder.put(self.share.count().into());
        }
        let chain = encoder.finish()?;
        let mut encoder = Encoder::new(to, chain);
        self.witnesses.save(&mut encoder);
        self.found.save(&mut encoder);
        encoder.finish().map(|_| ())
    }
}

/// The merged evidence of all parts.
#[derive(Debug, Default)]
pub struct Merged {
    /// The evidence of the first round.
    pub evidence: PartEvidence,
    /// The evidence of the rounds of refinement that were run.
    pub closer: Closer,
}

impl Merged {
    /// Reads the evidence of a part and adds it; `false` if it is a refinement of other groups than one before it.
    fn load_more(&mut self, round: Round, from: &mut Decoder<'_>) -> Result<bool, Fault> {
        let closer = &mut self.closer;
        let suspects = match round {
            Round::Shards => {
                self.evidence.load_more(from)?;
                return Ok(true);
            }
            Round::Inodes => {
                let suspects = Saved::load(from)?;
                closer.learned.get_or_insert_default().load_more(from)?;
                suspects
            }
            Round::Names => {
                let suspects = Saved::load(from)?;
                closer.judged.get_or_insert_default().load_more(from)?;
                suspects
            }
        };
        Ok(*closer.suspects.get_or_insert(suspects) == suspects)
    }
}

/// The file of a part.
struct PartFile<'p> {
    parts: &'p dyn Parts,
    /// Its place among them.
    at: usize,
    name: String,
    bounds: Bounds,
}

impl PartFile<'_> {
    fn foreign(&self, how: String) -> PartRefusal {
        PartRefusal::Foreign { name: self.name.clone(), how }
    }

    fn refused(&self, fault: Fault) -> PartRefusal {
        let name = self.name.clone();
        match fault {
            Fault::Cut => PartRefusal::Damaged { name, how: "truncated" },
            Fault::Damaged => PartRefusal::Damaged { name, how: "damaged" },
            Fault::Read(source) => PartRefusal::File { name, source },
        }
    }

    /// Reads which shard of which round it is of, and by `rest` as much as is wanted of what follows, unless `judge`
    /// refuses its header.
    fn read<T>(
        &self,
        judge: impl FnOnce(Header) -> Result<(), PartRefusal>,
        rest: impl FnOnce((Round, Share), &mut Decoder<'_>) -> Result<T, Fault>,
    ) -> Result<T, PartRefusal> {
        let bytes = self.parts.open(self.at);
        let mut bytes =
            bytes.map_err(|source| PartRefusal::File { name: self.name.clone(), source })?;
        let mut start = [0; START_BYTES as usize];
        if bytes.read_exact(&mut start).is_err() || !start.starts_with(MAGIC) {
            return Err(PartRefusal::NotOurs { name: self.name.clone() });
        }
        if start[MAGIC.len()] != VERSION {
            return Err(self.foreign("it was written by another version of Floe".to_owned()));
        }
        let mut decoder = Decoder::new(&mut bytes, 0, self.bounds);
        let header = record(&mut decoder, Header::load).map_err(|fault| self.refused(fault))?;
        let shards = header.shards();
        judge(header)?;
        record(&mut decoder, |from| place(from, shards))
            .and_then(|place| rest(place, &mut decoder))
            .map_err(|fault| self.refused(fault))
    }

    /// Verifies that its header is that of a part of a check in shards with the header `of`.
    fn must_be_of(&self, of: &Header, header: &Header) -> Result<(), PartRefusal> {
        if header.shards() == 0 {
            let how = "it is a checkpoint, which --checkpoint resumes".to_owned();
            return Err(self.foreign(how));
        }
        match of.clone().in_shards(header.shards()).compare(header) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(PartRefusal::Changed { name: self.name.clone(), why }),
            Err(Refusal::OtherFileSystem { uuid, size_bytes }) => Err(self.foreign(format!(
                "it is of another file system (UUID {uuid}, {size_bytes} bytes)"
            ))),
            Err(other) => Err(self.foreign(other.to_string())),
        }
    }
}

/// Reads a record that must be there.
fn record<T>(
    from: &mut Decoder<'_>,
    content: impl FnOnce(&mut Decoder<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    if !from.begin()? {
        return Err(Fault::Cut);
    }
    let content = content(from)?;
    from.end()?;
    Ok(content)
}

/// The record that tells the shard of a part.
fn place(from: &mut Decoder<'_>, shards: u32) -> Result<(Round, Share), Fault> {
    let stored = from.number()?;
    let rounds = [Round::Shards, Round::Inodes, Round::Names];
    let round = rounds.into_iter().find(|round| kind(*round) == stored).ok_or(Fault::Damaged)?;
    let index: u32 = Saved::load(from)?;
    let count = if round == Round::Shards { shards } else { Saved::load(from)? };
    Ok((round, Share::new(index, count).ok_or(Fault::Damaged)?))
}

/// The parts, by round and index, and how many shards each round has.
#[derive(Default)]
struct Roll<'p> {
    files: BTreeMap<(Round, u32), PartFile<'p>>,
    counts: BTreeMap<Round, u32>,
}

impl<'p> Roll<'p> {
    fn add(&mut self, file: PartFile<'p>, round: Round, share: Share) -> Result<(), PartRefusal> {
        let (index, count) = (share.index(), share.count());
        let known = *self.counts.entry(round).or_insert(count);
        if known != count {
            let how = format!("it is of {count} {}, another part of {known}", round.shards());
            return Err(file.foreign(how));
        }
        match self.files.get(&(round, index)) {
            Some(other) => {
                let (name, other) = (file.name, other.name.clone());
                Err(PartRefusal::Repeated { name, other, round, index, count })
            }
            None => {
                self.files.insert((round, index), file);
                Ok(())
            }
        }
    }

    /// Verifies that rounds are complete, and that none was left out before another.
    fn must_be_complete(&self) -> Result<(), PartRefusal> {
        let last = self.counts.keys().copied().max().unwrap_or(Round::Shards);
        for round in [Round::Shards, Round::Inodes, Round::Names] {
            if round > last {
                break;
            }
            let count = self.counts.get(&round).copied().unwrap_or(1);
            let missing: Vec<u32> =
                (0..count).filter(|index| !self.files.contains_key(&(round, *index))).collect();
            if !missing.is_empty() {
                return Err(PartRefusal::Missing { round, missing, count });
            }
        }
        Ok(())
    }

    /// Reads and merges the evidence of all parts, whose header is `header`, and their witnesses. In the order of shards
    /// lists of directories are in order, too, and need not be sorted.
    fn merged(&self, header: &Header) -> Result<(Merged, Vec<Witness>), PartRefusal> {
        let (mut all, mut witnesses) = (Merged::default(), Vec::new());
        for (place, file) in &self.files {
            let replaced = || file.foreign("it was replaced while parts were read".to_owned());
            let judge = |again| if again == *header { Ok(()) } else { Err(replaced()) };
            let is_of_groups = file.read(judge, |(round, share), from| {
                if (round, share.index()) != *place {
                    return Ok(None);
                }
                let is_of_groups = record(from, |from| {
                    witnesses.append(&mut Saved::load(from)?);
                    all.load_more(round, from)
                })?;
                // Nothing may follow.
                if from.begin()? { Err(Fault::Damaged) } else { Ok(Some(is_of_groups)) }
            })?;
            if !is_of_groups.ok_or_else(replaced)? {
                let how = "it refines other groups than another part".to_owned();
                return Err(file.foreign(how));
            }
        }
        Ok((all, witnesses))
    }
}

/// Reads all parts and merges them: the header that they have in common, and the evidence of all shards. `of` is
/// the header of a check begun now. Each `asker`, a shard of a refinement or (`None`) the merge, reads other witnesses again.
///
/// # Errors
/// [`PartRefusal`] unless there is one part of each shard, in each round that was begun, all of this file system as
/// it is now and of one check.
pub fn merge_parts(
    parts: &dyn Parts,
    of: &Header,
    volume: &Volume<'_>,
    asker: Option<Share>,
) -> Result<(Header, Merged), PartRefusal> {
    let bounds = Bounds::of(&volume.geometry);
    let (mut first, mut roll) = (None, Roll::default());
    for at in 0..parts.count() {
        let file = PartFile { parts, at, name: parts.name(at), bounds };
        let judge = |header: Header| {
            file.must_be_of(of, &header)?;
            let (known, other) = first.get_or_insert_with(|| (header.clone(), file.name.clone()));
            if *known == header {
                Ok(())
            } else {
                Err(of_other_check(known, other, &header, &file))
            }
        };
        let (round, share) = file.read(judge, |place, _| Ok(place))?;
        roll.add(file, round, share)?;
    }
    roll.must_be_complete()?;
    let Some((header, _)) = first else {
        let (round, missing) = (Round::Shards, vec![0]);
        return Err(PartRefusal::Missing { round, missing, count: 1 });
    };
    let (all, witnesses) = roll.merged(&header)?;
    let mut key = header.key;
    let asker = asker.map_or(0, |share| share.index().wrapping_add(1));
    key.iter_mut().zip(asker.to_le_bytes()).for_each(|(key, by)| *key ^= by);
    match Witness::find_changed(&witnesses, volume, &key) {
        Some(block) => {
            let (name, why) = ("A part".to_owned(), format!("it is older than what is in {block}"));
            Err(PartRefusal::Changed { name, why })
        }
        None => Ok((header, all)),
    }
}

/// Why two parts are not of one check.
fn of_other_check(
    known: &Header,
    other: &str,
    header: &Header,
    file: &PartFile<'_>,
) -> PartRefusal {
    file.foreign(if known.shards() != header.shards() {
        format!("it is of {} shards, {other} of {}", header.shards(), known.shards())
    } else if known.key != header.key {
        format!("its key is not that of {other}")
    } else {
        format!("{other} was begun in another way or at another time")
    })
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::evidence::dirs::DirInfo;
    use crate::problem::{Problem, Sink};
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        PartEvidence,
        (1u32..99, 0u32..9),
        |all: &mut PartEvidence, (number, value): (u32, u32)| {
            let inode = InodeNr(number);
            all.inodes.dirs.infos.push(DirInfo { inode, size_blocks: value });
            all.directories.named.push((number, value));
            all.left_inline.push(inode);
            all.bitmaps.found.push(Problem::InodeFaddrNonzero { inode, value });
        },
        |all: PartEvidence| same(all, |mut all: PartEvidence| {
            all.inodes.dirs.infos.sort_unstable();
            all.directories.named.sort_unstable();
            all.left_inline.sort_unstable();
            let found = crate::report::in_order(all.bitmaps.found);
            (all.inodes.dirs.infos, all.directories.named, all.left_inline, found)
        })
    );
}
