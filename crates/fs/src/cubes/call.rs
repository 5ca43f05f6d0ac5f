//! Requests of administrators about the cubes of a file system in use.

use floe_format::InodeNr;
use floe_format::native::cube::{FsyncMode, JournalMode, OnError, Policies, Recovery};

use crate::FsError;

/// Settings of a cube, as text has them: words with `=`, apart by spaces or commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Most bytes of its lots; 0: no limit.
    pub max_bytes: Option<u64>,
    /// The reaction to a failure.
    pub on_error: Option<OnError>,
    /// How it is repaired.
    pub recovery: Option<Recovery>,
    /// The kind of blocks that its journal logs.
    pub journal_mode: Option<JournalMode>,
    /// How much fsync waits for.
    pub fsync_mode: Option<FsyncMode>,
    /// Blocks of a journal of its own; of a new cube alone.
    pub journal_blocks: Option<u32>,
}

impl Settings {
    /// Reads settings: `max_size=BYTES|none`, `on_error=ro|crash|repair`, `recovery=manual|offline|online`,
    /// `journal_mode=ordered|data`, `fsync=strict|off`, `journal_blocks=N`. `repair` stands for `ro` with `recovery=online`.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for any other word.
    pub fn parse(text: &str) -> Result<Self, FsError> {
        let mut settings = Self::default();
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or(FsError::Invalid)?;
            match (key, value) {
                ("max_size", "none") => settings.max_bytes = Some(0),
                ("max_size", bytes) => {
                    settings.max_bytes = Some(bytes.parse().map_err(|_| FsError::Invalid)?);
                }
                ("journal_blocks", blocks) => {
                    settings.journal_blocks = Some(blocks.parse().map_err(|_| FsError::Invalid)?);
                }
                ("journal_mode", name) => {
                    let mode = JournalMode::of_name(name).ok_or(FsError::Invalid)?;
                    settings.journal_mode = Some(mode);
                }
                ("fsync", name) => {
                    settings.fsync_mode = Some(FsyncMode::of_name(name).ok_or(FsError::Invalid)?);
                }
                ("on_error", "repair") => {
                    settings.on_error = Some(OnError::ReadOnly);
                    settings.recovery = Some(Recovery::Online);
                }
                ("on_error", name) => {
                    settings.on_error = Some(OnError::of_name(name).ok_or(FsError::Invalid)?);
                }
                ("recovery", name) => {
                    settings.recovery = Some(Recovery::of_name(name).ok_or(FsError::Invalid)?);
                }
                _ => return Err(FsError::Invalid),
            }
        }
        Ok(settings)
    }

    /// The policies of a cube with these settings.
    pub fn over(self, before: Policies, block_bytes: u32) -> Policies {
        Policies {
            limit_blocks: self
                .max_bytes
                .map_or(before.limit_blocks, |bytes| bytes.div_ceil(u64::from(block_bytes.max(1)))),
            on_error: self.on_error.unwrap_or(before.on_error),
            recovery: self.recovery.unwrap_or(before.recovery),
            journal_mode: self.journal_mode.unwrap_or(before.journal_mode),
            fsync_mode: self.fsync_mode.unwrap_or(before.fsync_mode),
        }
    }
}

/// A cube of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of an inode.
    Of(InodeNr),
    /// That with a number: where its own directory cannot be reached.
    Number(u32),
}

/// A call about cubes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CubeCall<'a> {
    /// The numbers of all cubes, apart by spaces.
    List,
    /// Blocks that the journal of a new cube has at most.
    MostJournal,
    /// Describes a cube by its number.
    Number(u32),
    /// Describes the cube of an inode.
    Show(InodeNr),
    /// Makes a cube: a new directory with a lot of its own. Answers its number.
    Create {
        /// Where.
        parent: InodeNr,
        /// Its name.
        name: &'a [u8],
        /// How it is to behave.
        settings: Settings,
    },
    /// Changes the cube of an inode.
    Set(InodeNr, Settings),
    /// Removes a cube.
    Remove {
        /// The directory of its directory.
        parent: InodeNr,
        /// Its name there.
        name: &'a [u8],
        /// The directory stays, with all its files.
        keep_files: bool,
    },
    /// Checks a cube while the others are served, and repairs it if that is wanted. The old content of changed
    /// blocks goes to a new file. The answer comes by [`CubeCall::Report`].
    Check {
        /// The cube.
        cube: Which,
        /// Repair what is found.
        repairs: bool,
        /// Where old content is saved.
        undo: Option<std::path::PathBuf>,
    },
    /// Free blocks of all cubes are held for them when the file system is unmounted.
    Fence,
    /// The result of the last check or repair of a cube; empty while it runs.
    Report(Which),
}

impl CubeCall<'_> {
    /// Whether the call changes anything.
    pub(crate) const fn changes(&self) -> bool {
        !matches!(
            self,
            Self::List | Self::MostJournal | Self::Number(_) | Self::Show(_) | Self::Report(_)
        )
    }

    /// The directory whose names change.
    pub(crate) const fn changed_directory(&self) -> Option<InodeNr> {
        match self {
            Self::Create { parent, .. } | Self::Remove { parent, .. } => Some(*parent),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_words() {
        let parsed = Settings::parse("max_size=4096, on_error=crash recovery=offline").unwrap();
        let policies = parsed.over(Policies::default(), 1024);
        assert_eq!((policies.limit_blocks, policies.on_error), (4, OnError::Crash));
        assert_eq!(policies.recovery, Recovery::Offline);
        // Less than a block is no absence of a limit.
        let small = Settings::parse("max_size=1").unwrap().over(Policies::default(), 1024);
        assert_eq!(small.limit_blocks, 1);
        let repair = Settings::parse("on_error=repair").unwrap();
        assert_eq!(
            (repair.on_error, repair.recovery),
            (Some(OnError::ReadOnly), Some(Recovery::Online))
        );
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        let modes = Settings::parse("journal_mode=data fsync=off").unwrap();
        let modes = modes.over(policies, 1024);
        assert_eq!((modes.journal_mode, modes.fsync_mode), (JournalMode::Data, FsyncMode::Off));
        assert_eq!(modes.on_error, OnError::Crash);
        for wrong in [
            "journal_mode=writeback",
            "fsync=none",
            "max_size",
            "max_size=x",
            "on_error=panic",
            "size=1",
            "recovery=",
        ] {
            assert!(Settings::parse(wrong).is_err(), "{wrong}");
        }
    }
}
