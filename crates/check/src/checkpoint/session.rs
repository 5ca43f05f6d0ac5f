//! A check that keeps a checkpoint: from what was stored to the record of its last leg.

use std::io::{self, Write};

use floe_exec::{Accumulator, Pool, WorkItem};
use floe_format::BlockRun;

use super::witness::Witness;
use super::{Header, Keeper, MAGIC, Notice, Refusal, START_BYTES, VERSION};
use crate::checks::context::directory::DirEvidence;
use crate::checks::context::inode::InodeEvidence;
use crate::error::CheckError;
use crate::saved::{Bounds, Decoder, Encoder, Fault, Saved};
use crate::volume::Volume;

/// The kind of a record other than the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A leg over parts of inode tables.
    Inodes = 1,
    /// A leg over runs of directory blocks.
    Directories = 2,
}

/// How far a pass was, and what it had found.
#[derive(Debug, Default)]
pub struct Begun<A> {
    /// Units that are done, the first ones.
    pub done: usize,
    /// The evidence that they yielded.
    pub evidence: A,
}

/// All that whole records of a checkpoint say.
#[derive(Default)]
struct Stored {
    inodes: Begun<InodeEvidence>,
    directories: Begun<DirEvidence>,
    witnesses: Vec<Witness>,
}

/// A check that keeps a checkpoint.
pub struct Session<'k> {
    keeper: &'k dyn Keeper,
    header: Header,
    /// The records of earlier legs, consumed one by one.
    stored: Stored,
    /// The hash that chains the last record to its predecessors.
    chain: u128,
    /// The checkpoint could not be written: the check goes on without.
    lost: bool,
}

impl<'k> Session<'k> {
    /// Goes on from what `keeper` has if that is of the same check, and begins anew else. `header` is
    /// that of a check begun now, `parts` how many parts of tables there are.
    ///
    /// # Errors
    /// [`CheckError::Checkpoint`] if what `keeper` has is not to be thrown away for this check, or
    /// nothing can be kept.
    pub fn begin(
        keeper: &'k dyn Keeper,
        header: Header,
        volume: &Volume<'_>,
        parts: usize,
    ) -> Result<Self, CheckError> {
        let file = |what| move |source| CheckError::from(Refusal::File { what, source });
        let mut session = Self { keeper, header, stored: Stored::default(), chain: 0, lost: false };
        if let Some(mut bytes) = keeper.stored().map_err(file("read"))? {
            match session.load(&mut bytes, volume, parts)? {
                Ok(good_bytes) => {
                    drop(bytes);
                    keeper.resume(good_bytes).map_err(file("write"))?;
                    return Ok(session);
                }
                Err(why) => keeper.tell(&Notice::Restarted { why }),
            }
        }
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        let mut encoder = Encoder::new(&mut bytes, 0);
        session.header.save(&mut encoder);
        session.chain = encoder.finish().map_err(file("make"))?;
        session.stored = Stored::default();
        keeper.replace(&bytes).map_err(file("make"))?;
        Ok(session)
    }

    /// Takes over what is stored; comes back with the number of bytes that are good, or with the
    /// reason why the check begins anew.
    fn load(
        &mut self,
        bytes: &mut dyn io::Read,
        volume: &Volume<'_>,
        parts: usize,
    ) -> Result<Result<u64, String>, CheckError> {
        let mut start = [0; START_BYTES as usize];
        let ours = bytes.read_exact(&mut start).is_ok() && start.starts_with(MAGIC);
        if !ours {
            return Err(Refusal::NotOurs.into());
        }
        if self.keeper.restart() {
            return Ok(Err("it is not wanted".to_owned()));
        }
        if start[MAGIC.len()] != VERSION {
            return Ok(Err("it was written by another version of Floe".to_owned()));
        }
        let mut decoder = Decoder::new(bytes, 0, Bounds::of(&volume.geometry));
        let header = match decoder.begin().and_then(|_| Header::load(&mut decoder)) {
            Ok(header) => header,
            Err(fault) => return damaged(fault),
        };
        let (mut chain, mut good_bytes) = match decoder.end() {
            Ok(end) => end,
            Err(fault) => return damaged(fault),
        };
        if let Some(why) = self.header.compare(&header)? {
            return Ok(Err(why));
        }
        let mut stored = Stored::default();
        let cut = loop {
            match stored.take_record(&mut decoder, parts) {
                Ok(Some(end)) => (chain, good_bytes) = end,
                Ok(None) => break false,
                Err(Fault::Read(source)) => return damaged(Fault::Read(source)),
                Err(Fault::Cut | Fault::Damaged) => break true,
            }
        };
        if let Some(block) = Witness::find_changed(&stored.witnesses, volume, &self.header.key) {
            return Ok(Err(format!("it is older than what is in {block}")));
        }
        self.keeper.tell(&Notice::Resumed {
            begun_seconds: header.now_seconds,
            parts: (stored.inodes.done, parts),
            runs: stored.directories.done,
            cut,
        });
        (self.header, self.stored, self.chain) = (header, stored, chain);
        Ok(Ok(START_BYTES + good_bytes))
    }

    /// The time when the check first began, which counts as the present in all legs.
    pub fn now_seconds(&self) -> i64 {
        self.header.now_seconds
    }

    /// The key of the sums.
    pub fn key(&self) -> [u8; 16] {
        self.header.key
    }

    /// Parts of inode tables that were read before.
    pub(crate) fn parts_done(&self) -> usize {
        self.stored.inodes.done
    }

    /// Runs of directory blocks that were read before.
    pub(crate) fn runs_done(&self) -> usize {
        self.stored.directories.done
    }

    /// How far the pass over inodes was.
    pub fn inodes(&mut self) -> Begun<InodeEvidence> {
        std::mem::take(&mut self.stored.inodes)
    }

    /// How far the pass over directories was.
    pub fn directories(&mut self) -> Begun<DirEvidence> {
        std::mem::take(&mut self.stored.directories)
    }

    /// Does the rest of a pass in legs: `units` are those that are left, `begun` is what was found in
    /// the others. `settle` makes what was found in a leg whole; `place` says where what a unit reads begins.
    ///
    /// # Errors
    /// [`CheckError::Stopped`] if that was asked for.
    pub fn run<U: Sync, A: Accumulator + Saved>(
        &mut self,
        legs: &Legs<'_>,
        begun: A,
        units: &[U],
        work: impl Fn(&mut A, &mut WorkItem<'_, '_, U>) + Sync,
        settle: impl Fn(&mut A),
        place: impl Fn(&U) -> BlockRun,
    ) -> Result<A, CheckError> {
        let Legs { kind, volume, pool, done } = *legs;
        let keeper = self.keeper;
        pool.expect(units.len());
        let (mut all, mut rest, mut units_done) = (begun, units, 0);
        while !rest.is_empty() {
            let hold = keeper.interrupt().hold().map_err(|_| CheckError::Stopped)?;
            let pause = || keeper.due() || keeper.interrupt().asked();
            let (mut leg, of_leg) = pool.run_until(rest, &work, pause);
            settle(&mut leg);
            let (now, later) = rest.split_at(of_leg);
            units_done += of_leg;
            // Another choice of witnesses in each leg.
            let mut key = self.header.key;
            key.iter_mut().zip(units_done.to_le_bytes()).for_each(|(key, by)| *key ^= by);
            let witnesses = Witness::some(volume, |at| place(&now[at]), now.len(), &key);
            self.append(kind, |to| {
                to.put(done(units_done) as u64);
                witnesses.save(to);
                leg.save(to);
            });
            all.merge(leg);
            rest = later;
            drop(hold);
            if keeper.interrupt().asked() {
                return Err(CheckError::Stopped);
            }
        }
        Ok(all)
    }

    fn append(&mut self, kind: Kind, save: impl Fn(&mut Encoder<'_>)) {
        if self.lost {
            return;
        }
        let chain = self.chain;
        let mut end = chain;
        let appended = self.keeper.append(&mut |out: &mut dyn Write| {
            let mut encoder = Encoder::new(out, chain);
            encoder.put(kind as u64);
            save(&mut encoder);
            end = encoder.finish()?;
            Ok(())
        });
        match appended {
            Ok(()) => self.chain = end,
            Err(error) => {
                self.lost = true;
                self.keeper.tell(&Notice::Lost(error));
            }
        }
    }
}

/// State shared by the legs of a pass.
pub struct Legs<'l> {
    kind: Kind,
    volume: &'l Volume<'l>,
    pool: &'l Pool<'l>,
    done: &'l dyn Fn(usize) -> usize,
}

impl<'l> Legs<'l> {
    /// Legs over parts of inode tables. `done` says what is done of all once so many of the units that
    /// were left are.
    pub fn of_inodes(
        volume: &'l Volume<'l>,
        pool: &'l Pool<'l>,
        done: &'l dyn Fn(usize) -> usize,
    ) -> Self {
        Self { kind: Kind::Inodes, volume, pool, done }
    }

    /// Legs over runs of directory blocks; `done` likewise.
    pub fn of_directories(
        volume: &'l Volume<'l>,
        pool: &'l Pool<'l>,
        done: &'l dyn Fn(usize) -> usize,
    ) -> Self {
        Self { kind: Kind::Directories, volume, pool, done }
    }
}

/// A checkpoint whose header cannot be used.
fn damaged(fault: Fault) -> Result<Result<u64, String>, CheckError> {
    match fault {
        Fault::Read(source) => Err(Refusal::File { what: "read", source }.into()),
        Fault::Cut | Fault::Damaged => Ok(Err("it is damaged".to_owned())),
    }
}

impl Stored {
    /// Takes over one record; comes back with where it ended, or with nothing if there is none any
    /// more.
    fn take_record(
        &mut self,
        from: &mut Decoder<'_>,
        parts: usize,
    ) -> Result<Option<(u128, u64)>, Fault> {
        if !from.begin()? {
            return Ok(None);
        }
        let kind = from.number()?;
        let done = usize::try_from(from.number()?).map_err(|_| Fault::Damaged)?;
        let witnesses = Vec::<Witness>::load(from)?;
        let end = if kind == Kind::Inodes as u64 && self.directories.done == 0 {
            let (leg, end) = (InodeEvidence::load(from)?, from.end()?);
            self.inodes.go_on(done, parts, leg)?;
            end
        } else if kind == Kind::Directories as u64 && self.inodes.done == parts {
            let (leg, end) = (DirEvidence::load(from)?, from.end()?);
            self.directories.go_on(done, usize::MAX, leg)?;
            end
        } else {
            return Err(Fault::Damaged);
        };
        self.witnesses.extend(witnesses);
        Ok(Some(end))
    }
}

impl<A: Accumulator> Begun<A> {
    fn go_on(&mut self, done: usize, most: usize, leg: A) -> Result<(), Fault> {
        if done <= self.done || done > most {
            return Err(Fault::Damaged);
        }
        self.done = done;
        self.evidence.merge(leg);
        Ok(())
    }
}
