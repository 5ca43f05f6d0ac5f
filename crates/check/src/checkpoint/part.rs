//! Parts: what one shard of a check found, as a file; and how the parts of all shards become one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use floe_exec::Accumulator;
use floe_format::{BlockRun, InodeNr};

use super::witness::Witness;
use super::{Header, MAGIC, START_BYTES, VERSION};
use crate::checks::context::directory::DirEvidence;
use crate::checks::context::inode::InodeEvidence;
use crate::checks::space::bitmaps::Bitmaps;
use crate::error::{PartRefusal, Refusal};
use crate::keeper::{Parts, Share};
use crate::saved::{Bounds, Decoder, Encoder, Fault, Saved};
use crate::volume::Volume;

/// The kind of the record of a first part. Records of a checkpoint have other kinds.
const KIND: u64 = 3;

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

/// The evidence of one shard of a check, with its header.
#[derive(Debug)]
pub struct Part {
    header: Header,
    share: Share,
    witnesses: Vec<Witness>,
    evidence: PartEvidence,
}

impl Part {
    /// The part of a shard. `header` is that of the check, `places` are the runs of blocks that the shard read,
    /// some of which are read again before parts are merged.
    pub(crate) fn new(
        header: Header,
        share: Share,
        volume: &Volume<'_>,
        places: &[BlockRun],
        evidence: PartEvidence,
    ) -> Self {
        let header = header.in_shards(share.count());
        // Short ones, because every shard reads its own once more, and the merge reads some of all.
        let most = (WITNESS_BYTES / u64::from(volume.geometry.block_size)).max(1);
        let place = |at: usize| BlockRun::new(places[at].start, places[at].len_blocks.min(most));
        let witnesses = Witness::some(volume, place, places.len(), &header.key);
        Self { header, share, witnesses, evidence }
    }

    /// Inodes in use in its groups.
    pub fn inodes_used(&self) -> u64 {
        self.evidence.inodes.totals.inodes_used
    }

    /// Directories among them.
    pub fn directories(&self) -> usize {
        self.evidence.inodes.dirs.infos.len()
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
        encoder.put(KIND);
        encoder.put(self.share.index().into());
        self.witnesses.save(&mut encoder);
        self.evidence.save(&mut encoder);
        encoder.finish().map(|_| ())
    }
}

/// A part as it was read, but for its header.
struct Loaded {
    index: u32,
    witnesses: Vec<Witness>,
    evidence: PartEvidence,
}

/// Reads all parts and merges them: the header that they have in common, and what all shards found. `of` is the
/// header of a check begun now.
///
/// # Errors
/// [`PartRefusal`] unless there is one part of each shard, all of this file system as it is now and of one check.
pub fn merge_parts(
    parts: &dyn Parts,
    of: &Header,
    volume: &Volume<'_>,
) -> Result<(Header, PartEvidence), PartRefusal> {
    let mut first: Option<(Header, String)> = None;
    let mut all = PartEvidence::default();
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    let mut witnesses = Vec::new();
    for at in 0..parts.count() {
        let name = parts.name(at);
        let mut bytes =
            parts.open(at).map_err(|source| PartRefusal::File { name: name.clone(), source })?;
        let (header, loaded) = load(&mut bytes, &name, of, volume)?;
        match &first {
            Some((known, _)) if *known == header => {}
            Some((known, other)) => return Err(of_other_check(known, other, &header, name)),
            None => first = Some((header.clone(), name.clone())),
        }
        let count = header.shards();
        if let Some(other) = names.get(&loaded.index) {
            let (other, index) = (other.clone(), loaded.index);
            return Err(PartRefusal::Repeated { name, other, index, count });
        }
        witnesses.extend(loaded.witnesses);
        names.insert(loaded.index, name);
        all.merge(loaded.evidence);
    }
    let Some((header, _)) = first else {
        return Err(PartRefusal::Missing { missing: vec![0], count: 1 });
    };
    let count = header.shards();
    let missing: Vec<u32> = (0..count).filter(|index| !names.contains_key(index)).collect();
    if !missing.is_empty() {
        return Err(PartRefusal::Missing { missing, count });
    }
    match Witness::find_changed(&witnesses, volume, &header.key) {
        Some(block) => {
            let (name, why) = ("A part".to_owned(), format!("it is older than what is in {block}"));
            Err(PartRefusal::Changed { name, why })
        }
        None => Ok((header, all)),
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
    if from.number()? != KIND {
        return Err(Fault::Damaged);
    }
    // Below a number of 32 bits.
    let index = from.below(shards.into())? as u32;
    let loaded = Loaded { index, witnesses: Saved::load(from)?, evidence: Saved::load(from)? };
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
