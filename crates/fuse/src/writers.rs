//! Files that programs have open for writing. With the kernel's write-back cache, their newest content is the kernel's
//! alone, so that the server must not answer for their holes and blocks by what it has.

use std::collections::{HashMap, HashSet};

use floe_format::InodeNr;
use floe_sync::atomic::AtomicUsize;
use floe_sync::{Mutex, MutexGuard, PoisonError};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::scarce::Scarce;

/// Files that are open for writing, and how often.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    counts: Mutex<HashMap<InodeNr, u64>>,
    failures: Mutex<Failures>,
    pub(crate) scarce: Scarce,
    /// Opens are not reported, so any file may be.
    pub(crate) unknown: bool,
}

/// Errors of what the kernel wrote back.
#[derive(Debug, Default)]
struct Failures {
    of_files: HashMap<InodeNr, Errno>,
    /// Files about which the kernel is to ask.
    untold: Vec<InodeNr>,
    /// Files of which the kernel shows something else than there is, and which are still open for writing.
    wrong: HashSet<InodeNr>,
    /// The same, without writers: the kernel is to forget them.
    outdated: HashMap<InodeNr, Pause>,
    /// Files of which a change was refused that was made in part: the kernel is to drop their content.
    changed_in_part: HashSet<InodeNr>,
}

/// Looks ([`Writers::take_outdated`]) between two requests to forget a file. The kernel forgets none that somebody reads or is just
/// closing, and does not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    passed: u32,
    until: u32,
}

impl Pause {
    /// The kernel is to be told with the next look.
    const NONE: Self = Self { passed: 0, until: 1 };
    const LONGEST: u32 = 64;

    /// Another look; `true` if it is time to ask. The pause after that is twice as long.
    fn pass(&mut self) -> bool {
        self.passed += 1;
        let is_over = self.passed >= self.until;
        if is_over {
            *self = Self { passed: 0, until: (self.until * 2).min(Self::LONGEST) };
        }
        is_over
    }
}

/// A file that the kernel is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outdated {
    pub(crate) inode: InodeNr,
    /// It was not told before: what it keeps of the content goes, too.
    pub(crate) is_first: bool,
}

/// Whether a file that is opened so can be written.
pub(crate) const fn writes(flags: u32) -> bool {
    flags & (OFlags::WRONLY.bits() | OFlags::RDWR.bits()) != 0
}

impl Writers {
    fn counts(&self) -> MutexGuard<'_, HashMap<InodeNr, u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was opened with these flags.
    pub(crate) fn open(&self, inode: InodeNr, flags: u32) {
        if writes(flags) && !self.unknown {
            *self.counts().entry(inode).or_default() += 1;
        }
    }

    /// One that was opened with these flags is gone; `true` if it was the last.
    pub(crate) fn close(&self, inode: InodeNr, flags: u32) -> bool {
        if !writes(flags) {
            return false;
        }
        let mut counts = self.counts();
        let Some(count) = counts.get_mut(&inode) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            counts.remove(&inode);
            drop(counts);
            let mut failures = self.failures();
            failures.of_files.remove(&inode);
            if failures.wrong.remove(&inode) {
                failures.outdated.insert(inode, Pause::NONE);
            }
        }
        is_last
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that the kernel wrote back was refused. The kernel tells who closes the file or makes it durable; whoever
    /// goes on writing would never learn of it.
    pub(crate) fn fail(&self, inode: InodeNr, errno: Errno) {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            self.scarce.note_refusal();
        }
        let mut failures = self.failures();
        failures.of_files.insert(inode, errno);
        failures.untold.push(inode);
        drop(failures);
        self.note_outdated(inode);
    }

    /// The kernel shows something else than there is: content or a size that were refused, or the time of before, because it does not
    /// notice what was written past its cache. Where opens are not reported, nobody knows when the last writer has gone.
    pub(crate) fn note_outdated(&self, inode: InodeNr) {
        if self.unknown {
            return;
        }
        let counts = self.counts();
        let mut failures = self.failures();
        match counts.contains_key(&inode) {
            true => _ = failures.wrong.insert(inode),
            false => _ = failures.outdated.insert(inode, Pause::NONE),
        }
    }

    /// The error of a file, once.
    pub(crate) fn take_failure(&self, inode: InodeNr) -> Option<Errno> {
        self.failures().of_files.remove(&inode)
    }

    /// Files about which the kernel is to ask before it takes more for them.
    pub(crate) fn take_untold(&self) -> Vec<InodeNr> {
        std::mem::take(&mut self.failures().untold)
    }

    /// Files of which the kernel keeps a size, a time, or perhaps content, that they do not have, as far as it is time to say so
    /// (again).
    pub(crate) fn take_outdated(&self) -> Vec<Outdated> {
        let told = |(inode, pause): (&InodeNr, &mut Pause)| {
            let is_first = *pause == Pause::NONE;
            pause.pass().then_some(Outdated { inode: *inode, is_first })
        };
        self.failures().outdated.iter_mut().filter_map(told).collect()
    }

    /// A change of the content was refused that may have been made in part. The kernel is told with the next look.
    pub(crate) fn note_changed_in_part(&self, inode: InodeNr) {
        self.failures().changed_in_part.insert(inode);
    }

    /// Files of which the kernel keeps content that they may not have.
    pub(crate) fn take_changed_in_part(&self) -> HashSet<InodeNr> {
        std::mem::take(&mut self.failures().changed_in_part)
    }

    /// The kernel forgot a file.
    pub(crate) fn note_forgotten(&self, inode: InodeNr) {
        self.failures().outdated.remove(&inode);
    }

    /// Whether somebody may write a file.
    pub(crate) fn has(&self, inode: InodeNr) -> bool {
        self.unknown || self.counts().contains_key(&inode)
    }
}

/// Threads that let the kernel write back.
#[derive(Debug, Default)]
pub(crate) struct WritingBack {
    pub(crate) count: AtomicUsize,
    pub(crate) turn: Mutex<()>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_writers_until_the_last_one_closes() {
        let (writers, file) = (Writers::default(), InodeNr(12));
        let (read, write, both) = (0, OFlags::WRONLY.bits(), OFlags::RDWR.bits());
        for flags in [read, write, both] {
            writers.open(file, flags);
        }
        assert!(writers.has(file) && !writers.has(InodeNr(13)));
        assert!(!writers.close(file, read) && !writers.close(file, write));
        assert!(writers.has(file));
        assert!(writers.close(file, both) && !writers.has(file));
        writers.fail(file, Errno::NOSPC);
        assert_eq!(writers.take_untold(), [file]);
        assert_eq!(writers.take_failure(file), Some(Errno::NOSPC));
        assert_eq!((writers.take_failure(file), writers.take_untold().len()), (None, 0));
        // Was never opened.
        assert!(!writers.close(file, both));
        assert!(!writers.has(file));
    }

    #[test]
    fn the_kernel_is_asked_to_forget_what_nobody_writes_until_it_has() {
        let (writers, file, write) = (Writers::default(), InodeNr(12), OFlags::WRONLY.bits());
        writers.open(file, write);
        writers.fail(file, Errno::NOSPC);
        assert_eq!(writers.take_outdated(), []);
        assert!(writers.close(file, write));
        let first = Outdated { inode: file, is_first: true };
        assert_eq!(writers.take_outdated(), [first]);
        // Somebody reads it: asked again after 2 looks, then after 4.
        let looks = (0..6).map(|_| writers.take_outdated().len());
        assert_eq!(looks.collect::<Vec<_>>(), [0, 1, 0, 0, 0, 1]);
        writers.note_forgotten(file);
        assert!((0..200).all(|_| writers.take_outdated().is_empty()));
        // Without a writer: at once.
        writers.note_outdated(file);
        assert_eq!(writers.take_outdated(), [first]);
        let asked = (0..1000).filter(|_| !writers.take_outdated().is_empty()).count();
        assert!((18..=24).contains(&asked), "{asked}");
    }
}
