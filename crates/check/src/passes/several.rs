//! Replays the logs of a native file system in use (`docs/journal.md`), and weighs the states of damaged ones.
//!
//! Reads: the logs; of a damaged one the whole file system in each state.  Keeps: a replay.
//! Transactions of several logs may depend on each other, so a state is one of the file system: the logs that are not judged yet count
//! with all of their sound transactions.

use floe_blockdev::{Overlay, ReadBlocks};
use floe_exec::Phase;
use floe_ext4::journal::{
    self, Choices, CubeJournal, Journal, Several, Taken, find_cubes, replay_several,
};
use floe_format::InodeNr;
use floe_format::native::is_locked;

use super::recovery::{empty, problem_of};
use super::weighed::{BEFORE, FOUND, NOTHING, SOUND, State, WHOLE, choose, is_rebuilt};
use crate::checks::system_files::journal::{root_damage, root_words, superblock_damage, words_of};
use crate::options::CheckOptions;
use crate::problem::Problem;
use crate::volume::open::Opened;

type Base<'d> = &'d dyn ReadBlocks;

/// The logs of a file system, replayed.
pub(super) struct Replayed<'d> {
    pub(super) logs: Several<Base<'d>>,
    pub(super) choices: Choices,
    /// Damaged logs besides inode 8, and what was weighed.
    pub(super) found: Vec<Problem>,
}

/// The logs and what is needed for their states.
struct Logs<'a, 'd> {
    empty: &'a dyn Fn() -> Overlay<Base<'d>>,
    opened: &'a Opened,
    root: &'a Journal,
    further: Vec<CubeJournal>,
    options: &'a CheckOptions<'a>,
}

/// Replays all logs; `empty` makes an overlay for a state, `phase` counts the blocks of inode 8's that are read.
pub(super) fn replay<'d>(
    device: Base<'d>,
    empty: &dyn Fn() -> Overlay<Base<'d>>,
    opened: &Opened,
    root: &Journal,
    options: &CheckOptions<'_>,
    phase: Option<&Phase>,
) -> Replayed<'d> {
    let Opened { superblock, geometry, groups, .. } = opened;
    let further = find_cubes(device, superblock, geometry, groups).usable;
    let logs = Logs { empty, opened, root, further, options };
    let first = logs.replay(&Choices::new(), phase);
    let mut damaged = logs.damaged(&first);
    let failed = logs
        .further
        .iter()
        .zip(&first.further)
        .filter(|(own, pass)| pass.failed || damaged.contains_key(&own.inode.0));
    let mut found: Vec<Problem> = failed.map(|(own, _)| of_cube(own)).collect();
    found.extend(logs.further.iter().filter_map(|own| superblock_damage(own, true)));
    for journal in logs.all().filter(|journal| is_rebuilt(journal)) {
        damaged.entry(journal::inode_of(journal)).or_insert(Taken::Before);
    }
    if damaged.is_empty() {
        return Replayed { logs: first, choices: damaged, found };
    }
    let (choices, told) = logs.weigh(damaged);
    found.extend(told);
    let mut logs = logs.replay(&choices, None);
    logs.root.events = first.root.events;
    Replayed { logs, choices, found }
}

impl<'d> Logs<'_, 'd> {
    fn replay(&self, choices: &Choices, phase: Option<&Phase>) -> Several<Base<'d>> {
        let geometry = &self.opened.geometry;
        replay_several((self.empty)(), geometry, self.root, &self.further, choices, phase)
    }

    /// The damaged logs, all sound transactions of which count. The damage of some shows only then: before, it lay behind what had
    /// to be left out for the sake of others.
    fn damaged(&self, first: &Several<Base<'d>>) -> Choices {
        let mut all = Choices::new();
        let mut new = first.damaged.clone();
        while !new.is_empty() {
            all.extend(new.into_iter().map(|(inode, first)| (inode, self.most(inode, first))));
            new = self.replay(&all, None).damaged;
            new.retain(|inode, _| !all.contains_key(inode));
        }
        all
    }

    fn all(&self) -> impl Iterator<Item = &Journal> {
        [self.root].into_iter().chain(self.further.iter().map(|own| &own.journal))
    }

    fn journal(&self, inode: u32) -> &Journal {
        self.all().find(|journal| journal::inode_of(journal) == inode).unwrap_or(self.root)
    }

    /// The most that can be taken of a damaged log.
    fn most(&self, inode: u32, first: u32) -> Taken {
        let journal = self.journal(inode);
        match journal::has_block_checksums(journal) {
            true => Taken::Sound(first),
            false => Taken::Before,
        }
    }

    /// Chooses a state of each log, one after the other.
    fn weigh(&self, mut choices: Choices) -> (Choices, Vec<Problem>) {
        let mut all_told = Vec::new();
        let damaged: Vec<(u32, Taken)> =
            choices.iter().map(|(inode, most)| (*inode, *most)).collect();
        for (inode, most) in damaged {
            // In the order of preference among equals.
            let mut taken = vec![most, Taken::Before, Taken::Nothing];
            taken.dedup();
            let states = taken.iter().map(|one| {
                choices.insert(inode, *one);
                let replayed = self.replay(&choices, None);
                let name = match one {
                    Taken::Sound(_) if replayed.whole.contains(&inode) => WHOLE,
                    Taken::Sound(_) => SOUND,
                    // The log itself is sound.
                    Taken::Before if most == Taken::Before && is_rebuilt(self.journal(inode)) => {
                        FOUND
                    }
                    Taken::Before => BEFORE,
                    Taken::Nothing => NOTHING,
                };
                let (transactions, _) = replayed.totals();
                State::new(name, replayed.root, transactions, self.options)
            });
            let mut states: Vec<State<'d>> = states.collect();
            let (best, told) = choose(&mut states, self.opened, (self.words(inode), inode));
            choices.insert(inode, taken[best]);
            all_told.extend(told);
        }
        (choices, all_told)
    }

    /// Words for a log, to follow "the log".
    fn words(&self, inode: u32) -> &'static str {
        match self.further.iter().find(|own| own.inode == InodeNr(inode)) {
            None => root_words(InodeNr(inode)),
            Some(own) => words_of(own),
        }
    }
}

/// The damage of logs that would be replayed.
pub(super) fn damage(
    device: Base<'_>,
    opened: &Opened,
    journal: &Journal,
    options: &CheckOptions<'_>,
) -> Vec<Problem> {
    let Opened { superblock, geometry, groups, .. } = opened;
    let (external, empty) = (options.external_journal, empty(device, geometry.block_size, options));
    let (root, mut found) = match is_locked(superblock) {
        true => {
            let further = find_cubes(device, superblock, geometry, groups).usable;
            let logs = replay_several(empty, geometry, journal, &further, &Choices::new(), None);
            let failed = further.iter().zip(&logs.further).filter(|(_, pass)| pass.failed);
            (logs.root, failed.map(|(own, _)| of_cube(own)).collect())
        }
        false => (journal::replay_onto(empty, geometry, journal, external, None), Vec::new()),
    };
    let of_root = root.events.iter();
    found.extend(of_root.filter_map(|event| problem_of(event, opened, Some(journal), external)));
    found
}

fn of_cube(own: &CubeJournal) -> Problem {
    let (cube, inode, reason) = (own.cube, own.inode, "a transaction in its log");
    Problem::CubeJournalDamaged { cube, inode, reason }
}

/// Chooses the states of damaged logs of a native file system in use, and says what is to be told. Nothing for other file systems.
pub fn choose_logs(
    device: Base<'_>,
    opened: &Opened,
    options: &CheckOptions<'_>,
) -> (Choices, Vec<Problem>) {
    let Opened { superblock, geometry, groups, .. } = opened;
    let (root, _) = journal::find(device, superblock, geometry, groups, None);
    if !is_locked(superblock) {
        return (Choices::new(), Vec::new());
    }
    let Some(root) = root else {
        let inode = InodeNr(superblock.journal_inum);
        let (log, reason) = (root_words(inode), "its inode cannot be used");
        return (Choices::new(), vec![Problem::JournalSuperblockLost { log, inode, reason }]);
    };
    let new = || empty(device, geometry.block_size, options);
    let Replayed { choices, mut found, .. } = replay(device, &new, opened, &root, options, None);
    found.extend(root_damage(&root));
    (choices, found)
}
