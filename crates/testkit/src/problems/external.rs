//! A journal on another device.

use crate::Image;
use crate::Profile;
use crate::recipe::{Recipe, superblock};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};

use super::Case;
use super::edits::HAS_JOURNAL;

const UUID: [u8; 16] = *b"the journal's id";
const JOURNAL_DEV: u32 = 0x8;
const METADATA_CSUM: u32 = 0x400;

/// A device with a journal of 2000 blocks of 1 KiB.
fn device(change: impl Fn(&mut Superblock), journal_words: &[(u64, u32)]) -> Image {
    let image = Image::empty(2 << 20).expect("a scratch file");
    let mut bytes = [0; 1024];
    let mut outer = Superblock::decode(&bytes);
    outer.magic = MAGIC;
    outer.rev_level = 1;
    outer.blocks_count_lo = 2048;
    outer.feature_incompat = JOURNAL_DEV;
    outer.uuid = UUID;
    change(&mut outer);
    outer.encode_into(&mut bytes);
    image.write(OFFSET_BYTES, &bytes).expect("written");
    let words =
        [(0, 0xc03b_3998), (4, 4), (0x0c, 1024), (0x10, 2048), (0x14, 3), (0x18, 1), (0x40, 1)];
    for &(at, word) in words.iter().chain(journal_words) {
        let word: u32 = word;
        image.write(2048 + at, &word.to_be_bytes()).expect("written");
    }
    image
}

fn recipe(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(name)
        .on(Profile::NoJournal)
        .edit(superblock(|sb| {
            sb.feature_compat |= HAS_JOURNAL;
            sb.journal_uuid = UUID;
            sb.journal_dev = 0x801;
        }))
        .expect(ids)
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let on = |name: &str, journal, ids: &[&'static str]| {
        Case::from(recipe(name, ids)).with_journal(journal)
    };
    vec![
        recipe("journal not given", &["external-journal-not-found"]).into(),
        on("a journal", device(|_| (), &[]), &[]),
        on(
            "no journal",
            device(|outer| outer.feature_incompat = 0, &[]),
            &["external-journal-not-a-journal-device"],
        ),
        on(
            "another's journal",
            device(|outer| outer.uuid[0] = 0, &[]),
            &["external-journal-uuid-mismatch"],
        ),
        on("shared journal", device(|_| (), &[(0x40, 2)]), &["external-journal-multiple-users"]),
        on(
            "journal without a user",
            device(|_| (), &[(0x40, 0)]),
            &["external-journal-without-user"],
        ),
        on(
            "journal device of version 1",
            device(|_| (), &[(4, 3), (0x40, 0)]),
            &["journal-version-too-old"],
        )
        .unlike_e2fsck("Linux refuses it, and e2fsck does not look"),
        on(
            "checksum of a journal device",
            device(
                |outer| {
                    outer.feature_ro_compat = METADATA_CSUM;
                    outer.checksum_type = 1;
                },
                &[],
            ),
            &["external-journal-checksum-bad"],
        ),
    ]
}
