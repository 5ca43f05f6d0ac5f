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
        Ok(Self {
            inodes: Saved::load(from)?,
            directories: Saved::load(from)?,
            left_inline: Saved::load(from)?,
            bitmaps: Saved::load(from)?,
        })
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

    fn load(round: Round, from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok(match round {
            Round::Shards => Self::Shard(Box::new(Saved::load(from)?)),
            Round::Inodes => Self::Inodes(Saved::load(from)?, Box::new(Saved::load(from)?)),
            Round::Names => Self::Names(Saved::load(from)?, Box::new(Saved::load(from)?)),
        })
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
        self.witnesses.save(&mut encoder);
        self.found.save(&mut encoder);
        encoder.finish().map(|_| ())
    }
}

/// A part as it was read, but for its header.
struct Loaded {
    share: Share,
    witnesses: Vec<Witness>,
    found: Found,
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
    /// Adds the evidence of a part; `false` if it is a refinement of other groups than one before it.
    fn add(&mut self, found: Found) -> bool {
        let closer = &mut self.closer;
        let suspects = match found {
            Found::Shard(evidence) => {
                self.evidence.merge(*evidence);
                return true;
            }
            Found::Inodes(suspects, evidence) => {
                closer.learned.get_or_insert_default().merge(*evidence);
                suspects
            }
            Found::Names(suspects, evidence) => {
                closer.judged.get_or_insert_default().merge(*evidence);
                suspects
            }
        };
        *closer.suspects.get_or_insert(suspects) == suspects
    }
}

/// The names of the parts that were read, by round and index, and how many shards each round has.
#[derive(Default)]
struct Roll {
    names: BTreeMap<(Round, u32), String>,
    counts: BTreeMap<Round, u32>,
}

impl Roll {
    fn add(&mut self, name: String, round: Round, share: Share) -> Result<(), PartRefusal> {
        let (index, count) = (share.index(), share.count());
        let known = *self.counts.entry(round).or_insert(count);
        if known != count {
            let how = format!("it is of {count} {}, another part of {known}", round.shards());
            return Err(PartRefusal::Foreign { name, how });
        }
        match self.names.get(&(round, index)) {
            Some(other) => {
                let other = other.clone();
                Err(PartRefusal::Repeated { name, other, round, index, count })
            }
            None => {
                self.names.insert((round, index), name);
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
                (0..count).filter(|index| !self.names.contains_key(&(round, *index))).collect();
            if !missing.is_empty() {
                return Err(PartRefusal::Missing { round, missing, count });
            }
        }
        Ok(())
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
    let mut first: Option<(Header, String)> = None;
    let (mut loaded, mut roll, mut witnesses) = (Vec::new(), Roll::default(), Vec::new());
    for at in 0..parts.count() {
        let name = parts.name(at);
        let mut bytes =
            parts.open(at).map_err(|source| PartRefusal::File { name: name.clone(), source })?;
        let (header, part) = load(&mut bytes, &name, of, volume)?;
        match &first {
            Some((known, _)) if *known == header => {}
            Some((known, other)) => return Err(of_other_check(known, other, &header, name)),
            None => first = Some((header.clone(), name.clone())),
        }
        let Loaded { share, witnesses: of_part, found } = part;
        roll.add(name.clone(), found.round(), share)?;
        witnesses.extend(of_part);
        loaded.push(((found.round(), share.index()), name, found));
    }
    roll.must_be_complete()?;
    // In the order of shards lists of directories are in order, too, and need not be sorted.
    loaded.sort_unstable_by_key(|(place, ..)| *place);
    let all = merged(loaded)?;
    let Some((header, _)) = first else {
        let (round, missing) = (Round::Shards, vec![0]);
        return Err(PartRefusal::Missing { round, missing, count: 1 });
    };
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

/// Merges the evidence of parts, whose names are given for messages.
fn merged(parts: Vec<((Round, u32), String, Found)>) -> Result<Merged, PartRefusal> {
    let mut rest = Lengths::default();
    parts.iter().for_each(|(.., found)| rest.add(found));
    let mut all = Merged::default();
    for (at, (_, name, found)) in parts.into_iter().enumerate() {
        if !all.add(found) {
            let how = "it refines other groups than another part".to_owned();
            return Err(PartRefusal::Foreign { name, how });
        }
        if at == 0 {
            rest.reserve(&mut all.evidence);
        }
    }
    Ok(all)
}

/// The lengths of the long lists of all parts, so that merging many parts does not move those before each time.
#[derive(Default)]
struct Lengths {
    runs: usize,
    infos: usize,
    named: usize,
    dotdots: usize,
}

impl Lengths {
    fn add(&mut self, found: &Found) {
        if let Found::Shard(part) = found {
            self.runs += part.inodes.dirs.runs.len();
            self.infos += part.inodes.dirs.infos.len();
            self.named += part.directories.named.len();
            self.dotdots += part.directories.dotdots.len();
        }
    }

    /// Makes room for all of them in the lists, which hold the first part's.
    fn reserve(&self, all: &mut PartEvidence) {
        fn reserve<T>(list: &mut Vec<T>, all: usize) {
            list.reserve_exact(all.saturating_sub(list.len()));
        }
        reserve(&mut all.inodes.dirs.runs, self.runs);
        reserve(&mut all.inodes.dirs.infos, self.infos);
        reserve(&mut all.directories.named, self.named);
        reserve(&mut all.directories.dotdots, self.dotdots);
    }
}

/// Why two parts are not of one check.
fn of_other_check(known: &Header, other: &str, header: &Header, name: String) -> PartRefusal {
    let how = if known.shards() != header.shards() {
        format!("it is of {} shards, {other} of {}", header.shards(), known.shards())
    } else if known.key != header.key {
        format!("its key is not that of {other}")
    } else {
        format!("{other} was begun in another way or at another time")
    };
    PartRefusal::Foreign { name, how }
}

fn load(
    bytes: &mut dyn Read,
    name: &str,
    of: &Header,
    volume: &Volume<'_>,
) -> Result<(Header, Loaded), PartRefusal> {
    let name = || name.to_owned();
    let fault = |fault| match fault {
        Fault::Cut => PartRefusal::Damaged { name: name(), how: "truncated" },
        Fault::Damaged => PartRefusal::Damaged { name: name(), how: "damaged" },
        Fault::Read(source) => PartRefusal::File { name: name(), source },
    };
    let mut start = [0; START_BYTES as usize];
    if bytes.read_exact(&mut start).is_err() || !start.starts_with(MAGIC) {
        return Err(PartRefusal::NotOurs { name: name() });
    }
    let foreign = |how: String| PartRefusal::Foreign { name: name(), how };
    if start[MAGIC.len()] != VERSION {
        return Err(foreign("it was written by another version of Floe".to_owned()));
    }
    let mut decoder = Decoder::new(bytes, 0, Bounds::of(&volume.geometry));
    if !decoder.begin().map_err(fault)? {
        return Err(PartRefusal::Damaged { name: name(), how: "truncated" });
    }
    let header = Header::load(&mut decoder).map_err(fault)?;
    decoder.end().map_err(fault)?;
    if header.shards() == 0 {
        return Err(foreign("it is a checkpoint, which --checkpoint resumes".to_owned()));
    }
    match of.clone().in_shards(header.shards()).compare(&header) {
        Ok(None) => {}
        Ok(Some(why)) => return Err(PartRefusal::Changed { name: name(), why }),
        Err(Refusal::OtherFileSystem { uuid, size_bytes }) => {
            return Err(foreign(format!(
                "it is of another file system (UUID {uuid}, {size_bytes} bytes)"
            )));
        }
        Err(other) => return Err(foreign(other.to_string())),
    }
    let loaded = record(&mut decoder, header.shards()).map_err(fault)?;
    Ok((header, loaded))
}

/// The one record of a part, and the end of the file.
fn record(from: &mut Decoder<'_>, shards: u32) -> Result<Loaded, Fault> {
    if !from.begin()? {
        return Err(Fault::Cut);
    }
    let stored = from.number()?;
    let rounds = [Round::Shards, Round::Inodes, Round::Names];
    let round = rounds.into_iter().find(|round| kind(*round) == stored).ok_or(Fault::Damaged)?;
    let index: u32 = Saved::load(from)?;
    let count = if round == Round::Shards { shards } else { Saved::load(from)? };
    let share = Share::new(index, count).ok_or(Fault::Damaged)?;
    let loaded = Loaded { share, witnesses: Saved::load(from)?, found: Found::load(round, from)? };
    from.end()?;
    if from.begin()? { Err(Fault::Damaged) } else { Ok(loaded) }
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
