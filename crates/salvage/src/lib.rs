//! Rebuilds the files of an ext2, ext3 or ext4 file system whose metadata are lost: inode tables,
//! directories, descriptors or the superblock. The source is never written.
//!
//! One sweep over the device recognises inodes, extent nodes and directory blocks by their content.
//! With metadata_csum, their checksums say whose they are (`docs/salvage.md`). Rebuilt inodes, maps
//! and directories lie in an overlay, so that the result is read like any other file system.
//!
//! ```no_run
//! use floe_salvage::{Options, salvage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = floe_blockdev::FileDevice::open("damaged.img".as_ref())?;
//! let summary = salvage(&device, &Options::default(), |found| found.summary.clone())?;
//! println!("{} files from extent blocks", summary.files_from_extents);
//! # Ok(())
//! # }
//! ```

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod bits;
mod cut;
mod directories;
mod evidence;
mod extended;
mod frame;
mod free_blocks;
mod headers;
mod inodes;
mod inventory;
mod log_copies;
mod maps;
mod names;
mod scan;
mod sizes;
mod state;
mod summary;
mod tables;
mod workspace;

use floe_blockdev::{Gapped, ReadBlocks};
use floe_check::volume::open::{WhichSuperblock, open};
use floe_check::{
    CheckError, CheckOptions, JournalUse, MemoryLimit, Problem, lacks_changes, recovery,
};
use floe_exec::{Pool, Progress};
use floe_ext4::files::Files;
use floe_format::BlockNr;

pub use cut::Cut;
pub use frame::Origin;
pub use inventory::{Object, State as ObjectState};
pub use summary::{InodeCounts, Losses, Provenance, Summary};

use frame::Frame;
use state::State;

/// Phases of a run, for [`Progress::new`].
pub const PHASES: [&str; 2] = ["sweep", "rebuild"];

/// How a run is made.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Workers; at least 1.
    pub threads: usize,
    /// The superblock to use instead of the primary one, counted in `block_size`.
    pub superblock: Option<BlockNr>,
    /// Bytes of a block, where the superblock cannot say (1024 to 65536).
    pub block_size: Option<u32>,
    /// Whether to replay a journal that holds transactions, in memory.
    pub journal: JournalUse,
    /// The device of an external journal.
    pub external_journal: Option<&'a dyn ReadBlocks>,
    /// Bytes of rebuilt metadata kept in memory; more go to a temporary file.
    pub overlay_bytes: u64,
    /// Counts the work done in [`PHASES`].
    pub progress: Option<&'a Progress>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            threads: 1,
            superblock: None,
            block_size: None,
            journal: JournalUse::Replay,
            external_journal: None,
            overlay_bytes: 256 << 20,
            progress: None,
        }
    }
}

/// Why nothing was rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// There is neither a superblock nor enough directory blocks to do without.
    #[error(transparent)]
    Open(#[from] CheckError),
    /// The first superblock belongs to a file system that begins elsewhere, as on a disk whose partition table is lost.
    #[error("{source}; a file system begins at byte {start_bytes}")]
    Elsewhere {
        /// The byte at which it begins.
        start_bytes: u64,
        /// Why there is none at the start of the device.
        source: CheckError,
    },
    /// Rebuilt metadata cannot be kept.
    #[error("cannot write rebuilt metadata to a temporary file: {0}")]
    Temporary(#[from] std::io::Error),
}

/// A rebuilt file system.
pub struct Salvaged<'s> {
    /// Its files.
    pub files: Files<'s>,
    /// The source of what was rebuilt.
    pub summary: &'s Summary,
    /// Findings of the journal by which the files lack the latest changes.
    pub lost: Vec<Problem>,
}

/// Rebuilds the file system on `device` in an overlay and passes it to `look`.
///
/// # Errors
/// [`SalvageError`]. Damage is never an error, nor are unreadable blocks.
pub fn salvage<T>(
    device: &dyn ReadBlocks,
    options: &Options<'_>,
    look: impl FnOnce(&Salvaged<'_>) -> T,
) -> Result<T, SalvageError> {
    let which = WhichSuperblock { block: options.superblock, block_size: options.block_size };
    let frame = frame::find(device, which)?;
    let Some(cut) = cut::find(device, &frame) else {
        return recovered(device, frame, options, None, look);
    };
    recovered(&Gapped::new(device, cut.gap()), frame, options, Some(cut), look)
}

/// Replays the journal, and rebuilds what is known then.
fn recovered<T>(
    device: &dyn ReadBlocks,
    frame: Frame,
    options: &Options<'_>,
    cut: Option<Cut>,
    look: impl FnOnce(&Salvaged<'_>) -> T,
) -> Result<T, SalvageError> {
    let opened = match frame.which {
        Some(which) => open(device, which).ok(),
        None => None,
    };
    let checking = CheckOptions {
        journal: options.journal,
        external_journal: options.external_journal,
        memory: MemoryLimit { limit_bytes: Some(options.overlay_bytes), held_bytes: 0 },
        ..CheckOptions::default()
    };
    let recovered = opened.map(|opened| {
        let recovery = recovery::recover(device, &opened, &checking);
        (opened.superblock, recovery)
    });
    let Some((stored, recovery)) = recovered else {
        return rebuilt(device, &frame, options, (cut, Vec::new()), look);
    };
    let after =
        recovery.overlay.as_ref().and_then(|after| open(after, WhichSuperblock::default()).ok());
    let superblock = after.map_or(stored, |after| after.superblock);
    let lacks = |problem: &Problem| lacks_changes(problem, &superblock);
    let lost: Vec<Problem> = recovery.found.0.into_iter().filter(lacks).collect();
    let Some(replayed) = recovery.overlay else {
        return rebuilt(device, &frame, options, (cut, lost), look);
    };
    // The replayed journal may hold a newer superblock and newer descriptors.
    let frame = frame::find(&replayed, frame.which.unwrap_or_default()).unwrap_or(frame);
    rebuilt(&replayed, &frame, options, (cut, lost), look)
}

fn rebuilt<T>(
    device: &dyn ReadBlocks,
    frame: &Frame,
    options: &Options<'_>,
    (cut, lost): (Option<Cut>, Vec<Problem>),
    look: impl FnOnce(&Salvaged<'_>) -> T,
) -> Result<T, SalvageError> {
    let begin = |phase| options.progress.map_or((), |progress| progress.begin(phase));
    let end = || options.progress.map_or((), Progress::end);
    let pool = Pool::new(options.threads.max(1)).watched(options.progress);
    begin(PHASES[0]);
    let evidence = scan::scan(device, frame, &pool);
    end();
    begin(PHASES[1]);
    let mut state = State::new(device, frame, evidence, options);
    state.summary.losses.cut = cut;
    state.rebuild(&pool)?;
    end();
    let (files, summary) = (state.space.files(), &state.summary);
    Ok(look(&Salvaged { files, summary, lost }))
}
