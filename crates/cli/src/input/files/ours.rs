//! Recognises files created by Floe by their first bytes: no others are replaced.

use std::io::{self, Read};
use std::path::Path;

use floe_blockdev::open_at_once;

/// The first bytes of an HTML page.
pub(crate) const HTML_HEAD: &[u8] = b"<!DOCTYPE html>";

/// The first bytes of a metrics file.
pub(crate) const METRICS_HEAD: &[u8] = b"# HELP floe_check_";

/// The first bytes of a file with the metrics of a fleet.
pub(crate) const FLEET_METRICS_HEAD: &[u8] = floe_report::fleet::prometheus::HEAD.as_bytes();

/// The first bytes of a file with the key of shards.
pub(crate) const SHARD_KEY_HEAD: &[u8] = b"floe-shards-key 1 ";

/// HTML pages, metrics, undo files, plans, checkpoints and parts, block maps, keys of shards.
const HEADS: [&[u8]; 8] = [
    HTML_HEAD,
    METRICS_HEAD,
    FLEET_METRICS_HEAD,
    &floe_format::ext::undo::MAGIC,
    &floe_repair::plan_file::MAGIC,
    floe_check::checkpoint::MAGIC,
    floe_disk::mkfs::BLOCK_MAP_HEAD,
    SHARD_KEY_HEAD,
];

/// Whether the file at `path` is empty, or starts like one of Floe's outputs.
///
/// # Errors
/// It cannot be read.
pub(super) fn is_ours(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    open_at_once(path)?.take(32).read_to_end(&mut head)?;
    let begun = |known: &&[u8]| known.starts_with(&head) || head.starts_with(known);
    Ok(HEADS.iter().any(begun))
}
