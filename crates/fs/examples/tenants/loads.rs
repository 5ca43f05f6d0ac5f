//! The calls of SQLite and of a mail server.

use anyhow::Result;
use floe_blockdev::WriteBlocks;
use floe_format::InodeNr;
use floe_fs::{Caller, FileSystem, FsError, Live, MemFs, NewInode, Op, OpKind, Place};
use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::time;

pub(crate) type Fs<'a> = FileSystem<MemFs<Live<'a, 'a, &'a dyn WriteBlocks>>>;

/// Bytes of a page of SQLite, and of the header of a frame of its log.
const PAGE: usize = 4096;
const FRAME: usize = PAGE + 24;
/// Frames of a log after which it is copied to the database.
const FRAMES: u64 = 1000;
/// Pages of a value of 40 KB.
const PAGES_PER_VALUE: u64 = 10;
/// Pages of a database, after which it begins anew: keys are updated in order.
const PAGES: u64 = 8000;
/// Files of a thread of the mail server.
const MAILS: u64 = 40;
/// Bytes that are appended.
const MAIL: usize = 16 << 10;
/// Bytes after which a mail is deleted.
const MOST_MAIL: u64 = 64 << 10;

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Counts MB of values.
    Sqlite,
    /// Counts calls of the mail server: eight in each turn, as varmail has them.
    Mail { threads: u64 },
}

pub(crate) fn make(
    fs: &Fs<'_>,
    directory: InodeNr,
    name: &[u8],
    new: NewInode<'_>,
) -> Result<InodeNr, FsError> {
    let made = apply(fs, OpKind::Create { place: Place { directory, name }, new })?;
    made.ok_or(FsError::NotFound)
}

fn apply(fs: &Fs<'_>, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
    let made = fs.apply(&Op { uid: 0, gid: 0, time: time(), kind })?;
    let Some(made) = made else { return Ok(None) };
    fs.forget(made.inode, 1)?;
    Ok(Some(made.inode))
}

pub(crate) fn find(fs: &Fs<'_>, directory: InodeNr, name: &[u8]) -> Result<InodeNr, FsError> {
    Ok(fs.look_up(&Caller::Judged, directory, name)?.inode)
}

fn write(fs: &Fs<'_>, inode: InodeNr, offset_bytes: u64, bytes: &[u8]) -> Result<(), FsError> {
    apply(fs, OpKind::Write { inode, offset_bytes, bytes }).map(drop)
}

/// Files of a cube that is checked.
pub(crate) fn fill(fs: &Fs<'_>, top: InodeNr) -> Result<()> {
    for at in 0..2000 {
        let file = make(fs, top, format!("file{at}").as_bytes(), NewInode::regular(0o644))?;
        write(fs, file, 0, &[1; 9000])?;
    }
    Ok(())
}

impl Load {
    pub(crate) const fn threads(&self) -> u64 {
        match self {
            Self::Sqlite => 1,
            Self::Mail { threads } => *threads,
        }
    }

    /// Makes the files that there are before.
    pub(crate) fn prepare(&self, fs: &Fs<'_>, top: InodeNr) -> Result<()> {
        match self {
            Self::Sqlite => {
                for name in ["db", "db-wal"] {
                    make(fs, top, name.as_bytes(), NewInode::regular(0o644))?;
                }
            }
            Self::Mail { threads } => {
                for number in 0..*threads {
                    for at in 0..MAILS {
                        let name = format!("mail{number}.{at}");
                        let file = make(fs, top, name.as_bytes(), NewInode::regular(0o644))?;
                        write(fs, file, 0, &[2; MAIL])?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs until it is told to end, and counts.
    pub(crate) fn work(
        &self,
        fs: &Fs<'_>,
        top: InodeNr,
        (number, count): (u64, &AtomicU64),
        ended: &AtomicBool,
    ) -> Result<()> {
        match self {
            Self::Sqlite => sqlite(fs, top, count, ended),
            Self::Mail { .. } => mail(fs, top, (number, count), ended),
        }
    }
}

fn sqlite(fs: &Fs<'_>, top: InodeNr, count: &AtomicU64, ended: &AtomicBool) -> Result<()> {
    let (db, log) = (find(fs, top, b"db")?, find(fs, top, b"db-wal")?);
    let (mut frames, mut page, mut values) = (0, 0, 0);
    while !ended.load(Ordering::SeqCst) {
        for _ in 0..PAGES_PER_VALUE {
            write(fs, log, 32 + frames * FRAME as u64, &[3; FRAME])?;
            frames += 1;
        }
        values += 1;
        // 40 KB each: 25 of them are a MB.
        if values % 25 == 0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
        if frames >= FRAMES {
            fs.sync_inode(log, None)?;
            for _ in 0..frames {
                write(fs, db, page % PAGES * PAGE as u64, &[4; PAGE])?;
                page += 1;
            }
            fs.sync_inode(db, None)?;
            frames = 0;
        }
    }
    Ok(())
}

fn mail(
    fs: &Fs<'_>,
    top: InodeNr,
    (number, count): (u64, &AtomicU64),
    ended: &AtomicBool,
) -> Result<()> {
    let name = |at: u64| format!("mail{number}.{}", at % MAILS);
    let mut bytes = vec![0; MOST_MAIL as usize + MAIL];
    let mut turn = 0u64;
    while !ended.load(Ordering::SeqCst) {
        turn += 1;
        let new = name(turn * 7);
        apply(fs, OpKind::Unlink(Place { directory: top, name: new.as_bytes() }))?;
        let file = make(fs, top, new.as_bytes(), NewInode::regular(0o644))?;
        write(fs, file, 0, &[5; MAIL])?;
        fs.sync_inode(file, None)?;
        let other = find(fs, top, name(turn * 11 + 3).as_bytes())?;
        let len = fs.read(other, 0, &mut bytes)? as u64;
        write(fs, other, if len < MOST_MAIL { len } else { 0 }, &[6; MAIL])?;
        fs.sync_inode(other, None)?;
        let third = find(fs, top, name(turn * 13 + 5).as_bytes())?;
        fs.read(third, 0, &mut bytes)?;
        count.fetch_add(8, Ordering::SeqCst);
    }
    Ok(())
}
