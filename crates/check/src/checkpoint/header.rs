//! The header of a checkpoint: it identifies the check that the checkpoint belongs to.

use std::hash::Hasher;

use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{seconds, uuid_text};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::Refusal;
use crate::evidence::inode_facts::CHUNK_INODES;
use crate::options::CheckOptions;
use crate::saved::{Decoder, Encoder, Fault, Saved};
use crate::volume::journal::{JournalState, JournalUse};
use crate::volume::open::Opened;

/// Identifies the file system, its state, the options, and the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of Floe.
    program: String,
    /// The findings that this build knows. Builds of one version that differ in these judge in different ways.
    findings: u128,
    /// The size of the device.
    size_bytes: u64,
    uuid: [u8; 16],
    /// When it was mounted and written to last, and how often it was mounted: for people. All that is
    /// in the superblock is in its hash.
    mounted: (u64, u64, u64),
    superblock: u128,
    descriptors: u128,
    /// The state of the journal, or that it was ignored.
    journal: String,
    options: Chosen,
    /// Inodes of a part of a table: what a leg counts.
    part_inodes: u32,
    /// When the check was begun: what counts as the present from begin to end.
    pub now_seconds: i64,
    /// The key of the sums.
    pub key: [u8; 16],
}

/// Options that change what is found, or how it is proved.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    superblock: Option<u64>,
    block_size: Option<u32>,
    ignore_journal: bool,
    check_encoding: bool,
    sums: bool,
    /// Shards of the check that this is one of; 0: one check of everything.
    shards: u32,
}

impl Header {
    /// The header for a check that begins now by a build that knows `findings` (a hash); it uses fingerprints drawn from
    /// `key`, if any. See also [`Header::in_shards`].
    pub fn of(
        opened: &Opened,
        size_bytes: u64,
        journal: &JournalState,
        options: &CheckOptions<'_>,
        (findings, key): (u128, [u8; 16]),
    ) -> Self {
        let superblock = &opened.superblock;
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            findings,
            size_bytes,
            uuid: superblock.uuid,
            mounted: (
                superblock.mnt_count.into(),
                seconds(superblock.mtime, superblock.mtime_hi),
                seconds(superblock.wtime, superblock.wtime_hi),
            ),
            superblock: hash(|hasher| hasher.write(&opened.bytes[..])),
            descriptors: hash(|hasher| opened.groups.iter().for_each(|desc| add(hasher, desc))),
            journal: format!("{journal:?}"),
            options: Chosen {
                superblock: options.superblock.block.map(|block| block.0),
                block_size: options.superblock.block_size,
                ignore_journal: options.journal != JournalUse::Replay,
                check_encoding: options.check_encoding,
                sums: options.tuning.accounting.sums_up(&opened.geometry),
                shards: 0,
            },
            part_inodes: CHUNK_INODES,
            now_seconds: options.now_seconds,
            key,
        }
    }

    /// The same, of one of `shards` shards of a check.
    #[must_use]
    pub fn in_shards(mut self, shards: u32) -> Self {
        self.options.shards = shards;
        self
    }

    /// Shards of the check; 0: it is one check of everything.
    pub fn shards(&self) -> u32 {
        self.options.shards
    }

    /// Whether a check of which this is the header goes on from a checkpoint with the header `stored`.
    /// If it must begin anew, `Ok` has the reason why.
    ///
    /// # Errors
    /// If the checkpoint should not be thrown away for this check.
    pub fn compare(&self, stored: &Self) -> Result<Option<String>, Refusal> {
        let again = |why: &str| Ok(Some(why.to_owned()));
        if stored.uuid != self.uuid {
            return Err(Refusal::OtherFileSystem {
                uuid: uuid_text(&stored.uuid),
                size_bytes: stored.size_bytes,
            });
        }
        if stored.options != self.options {
            let (theirs, ours) = (stored.options.tell(), self.options.tell());
            return Err(Refusal::OtherOptions { theirs, ours });
        }
        if stored.program != self.program || stored.part_inodes != self.part_inodes {
            return Ok(Some(format!("it was written by Floe {}", stored.program)));
        }
        if stored.findings != self.findings {
            return Ok(Some(format!("it was written by another build of Floe {}", stored.program)));
        }
        if stored.size_bytes != self.size_bytes {
            return again("it was written when the device had another size");
        }
        let ((count, mounted, written), (new_count, new_mounted, new_written)) =
            (stored.mounted, self.mounted);
        if (count, mounted) != (new_count, new_mounted) {
            return again("it is older than the last mount of the file system");
        }
        if written != new_written || stored.superblock != self.superblock {
            return again("it is older than the superblock of the file system");
        }
        if stored.descriptors != self.descriptors {
            return again("it is older than the group descriptors of the file system");
        }
        if stored.journal != self.journal {
            return again("it is older than what the journal of the file system holds");
        }
        Ok(None)
    }
}

impl Chosen {
    /// As words of a sentence that goes on with them.
    fn tell(&self) -> String {
        let Self { superblock, block_size, ignore_journal, check_encoding, sums, shards } = self;
        let superblock = superblock.map_or("with the primary superblock".to_owned(), |block| {
            format!("with the superblock in block {block}")
        });
        let size = block_size.map_or(String::new(), |size| format!(" of {size} bytes"));
        let journal = if *ignore_journal { "without" } else { "with" };
        let encoding = if *check_encoding { ", with a check of encodings" } else { "" };
        let accounting = if *sums { "by sums" } else { "object by object" };
        let shards = match shards {
            0 => String::new(),
            count => format!(", in {count} shards"),
        };
        format!("{superblock}{size}, {journal} the journal{encoding}, {accounting}{shards}")
    }
}

fn hash(write: impl FnOnce(&mut SipHasher24)) -> u128 {
    let mut hasher = SipHasher24::new_with_key(b"floe checkpoint ");
    write(&mut hasher);
    hasher.finish128().as_u128()
}

fn add(hasher: &mut SipHasher24, desc: &GroupDesc) {
    let (mut lo, mut hi) = ([0; 32], [0; 32]);
    desc.encode_into(&mut lo, Some(&mut hi));
    hasher.write(&lo);
    hasher.write(&hi);
}

impl Saved for Header {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self {
            program,
            findings,
            size_bytes,
            uuid,
            mounted: (count, mounted, written),
            superblock,
            descriptors,
            journal,
            options,
            part_inodes,
            now_seconds,
            key,
        } = self;
        let Chosen { superblock: place, block_size, ignore_journal, check_encoding, sums, shards } =
            options;
        // The version comes first, because the fields behind it may differ between versions.
        program.save(to);
        findings.save(to);
        size_bytes.save(to);
        uuid.save(to);
        [count, mounted, written].into_iter().for_each(|number| number.save(to));
        superblock.save(to);
        descriptors.save(to);
        journal.save(to);
        place.save(to);
        block_size.save(to);
        [ignore_journal, check_encoding, sums].into_iter().for_each(|flag| flag.save(to));
        shards.save(to);
        part_inodes.save(to);
        now_seconds.save(to);
        key.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok(Self {
            program: Saved::load(from)?,
            findings: Saved::load(from)?,
            size_bytes: Saved::load(from)?,
            uuid: Saved::load(from)?,
            mounted: (Saved::load(from)?, Saved::load(from)?, Saved::load(from)?),
            superblock: Saved::load(from)?,
            descriptors: Saved::load(from)?,
            journal: Saved::load(from)?,
            options: Chosen {
                superblock: Saved::load(from)?,
                block_size: Saved::load(from)?,
                ignore_journal: Saved::load(from)?,
                check_encoding: Saved::load(from)?,
                sums: Saved::load(from)?,
                shards: Saved::load(from)?,
            },
            part_inodes: Saved::load(from)?,
            now_seconds: Saved::load(from)?,
            key: Saved::load(from)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_does_not_go_on_what_another_build_found() {
        let options = Chosen {
            superblock: None,
            block_size: None,
            ignore_journal: false,
            check_encoding: false,
            sums: true,
            shards: 2,
        };
        let header = Header {
            program: "1.2".to_owned(),
            findings: 7,
            size_bytes: 1 << 20,
            uuid: [1; 16],
            mounted: (0, 0, 0),
            superblock: 2,
            descriptors: 3,
            journal: String::new(),
            options,
            part_inodes: CHUNK_INODES,
            now_seconds: 0,
            key: [0; 16],
        };
        let why = |other: Header| header.compare(&other).ok().flatten().unwrap_or_default();
        assert_eq!(why(header.clone()), "");
        assert!(
            why(Header { findings: 8, ..header.clone() }).contains("another build of Floe 1.2")
        );
        assert!(why(Header { program: "1.3".to_owned(), ..header.clone() }).contains("Floe 1.3"));
    }
}
