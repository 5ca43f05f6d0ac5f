//! The superblock during a commit: its clean flag is cleared.

use floe_format::ext::superblock::{MAGIC, STATE_VALID, Superblock};
use floe_format::features::Incompat;

/// Returns the superblock with its clean flag cleared, so that any tool that finds it checks the
/// file system before use. `None` if there is nothing to clear: the flag is not set, the superblock
/// is unusable (wrong magic number or checksum), or it belongs to a journal device.
///
/// Only that flag and the checksum change, and every repair sets the flag again, so a second repair
/// cannot tell that a first one was interrupted.
pub(crate) fn marked(superblock: &[u8; 1024]) -> Option<[u8; 1024]> {
    let mut sb = Superblock::decode(superblock);
    let usable = sb.magic == MAGIC && Superblock::checksum_ok(superblock);
    let is_journal = sb.features().incompat.contains(Incompat::JOURNAL_DEV);
    if !usable || is_journal || sb.state & STATE_VALID == 0 {
        return None;
    }
    sb.state &= !STATE_VALID;
    let mut bytes = *superblock;
    sb.encode_with_checksum(&mut bytes);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_state_and_the_checksum_change() {
        let mut sb = Superblock::decode(&[0; 1024]);
        sb.magic = MAGIC;
        sb.state = STATE_VALID | 0x10;
        sb.feature_ro_compat = 0x400;
        let mut bytes = [0; 1024];
        sb.encode_into(&mut bytes);
        assert_eq!(marked(&bytes), None, "its checksum is wrong");
        Superblock::write_checksum(&mut bytes);
        let marked_bytes = marked(&bytes).unwrap();
        assert!(Superblock::checksum_ok(&marked_bytes));
        let differing: Vec<usize> = (0..1024).filter(|&at| bytes[at] != marked_bytes[at]).collect();
        assert!(differing.iter().all(|&at| at == 0x3a || at >= 0x3fc), "{differing:x?}");
        assert_eq!(Superblock::decode(&marked_bytes).state, 0x10);
        assert_eq!(marked(&marked_bytes), None, "once is enough");
    }

    #[test]
    fn what_is_no_file_system_stays() {
        assert_eq!(marked(&[0; 1024]), None);
        let mut sb = Superblock::decode(&[0; 1024]);
        (sb.magic, sb.state) = (MAGIC, STATE_VALID);
        sb.feature_incompat = Incompat::JOURNAL_DEV.bits();
        let mut bytes = [0; 1024];
        sb.encode_into(&mut bytes);
        assert_eq!(marked(&bytes), None);
        sb.feature_incompat = 0;
        sb.encode_into(&mut bytes);
        assert!(marked(&bytes).is_some());
    }
}
