//! Backpointers of inodes of native file systems (`docs/native.md`): each gets the name that a directory has for it.

use floe_format::BlockNr;
use floe_format::InodeNr;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::native::backpointer::{Backpointer, FLAG_SEVERAL};

use crate::stage::Stage;

/// Stores the names of all inodes in them. Inodes and blocks that cannot be read are left to a later round.
pub(super) fn mend(stage: &Stage<'_>) {
    let runs = &stage.evidence.dirs.runs;
    for run in runs {
        for block in (run.block.0..).take(run.len_blocks as usize).map(BlockNr) {
            let Ok(bytes) = stage.read_block(block) else { continue };
            for entry in DirCursor::new(&bytes).map_while(Result::ok) {
                if entry.in_use() && !entry.is_dot_or_dotdot() {
                    mend_one(stage, run.dir, entry.inode, entry.name);
                }
            }
        }
    }
}

fn mend_one(stage: &Stage<'_>, dir: InodeNr, inode: InodeNr, name: &[u8]) {
    let Ok(mut image) = stage.read_inode(inode) else { return };
    let is_dir = FileType::of_mode(image.base.mode) == Some(FileType::Directory);
    let is_single = is_dir || image.base.links_count == 1;
    let stored = Backpointer::of(&image.raw);
    let stays = stored.is_some_and(|own| !is_single || own.fits(dir, name));
    if stays || image.base.links_count == 0 {
        return;
    }
    let flags = if is_single { 0 } else { FLAG_SEVERAL };
    let own = Backpointer { flags, ..Backpointer::new(dir, name) };
    Backpointer::store(Some(&own), &mut image.raw, image.extra.extra_isize);
    // An inode that cannot be written is found again.
    let _ = stage.write_inode(&image);
}
