//! Files whose times move while they are copied.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use anyhow::Result;

use super::{Kind, Moved, Stat, Tree, copy_one};

/// A file system with one file, whose time moves once its content was copied.
struct Moving {
    time: Cell<i64>,
    has_same_content: bool,
    settled: RefCell<Vec<(i64, u32)>>,
}

const NEW: i64 = 20;

fn file(modified: i64) -> Stat {
    let time = (modified, 0);
    Stat {
        inode: 12,
        kind: Kind::Regular,
        permissions: 0o644,
        owner: (0, 0),
        size_bytes: 5,
        links: 1,
        accessed: time,
        modified: time,
        changed: time,
        device: (0, 0),
        is_kept: false,
        flags: 0,
    }
}

impl Tree for Moving {
    fn stat(&self, _: &[u8]) -> Result<Option<Stat>> {
        Ok(Some(file(self.time.get())))
    }

    fn list(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
        unreachable!("there is no directory")
    }

    fn make(&self, _: &[u8], _: &Stat, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn target(&self, _: &[u8]) -> Result<Vec<u8>> {
        unreachable!("there is no link")
    }

    fn copy(&self, _: &[u8], _: &[u8], _: &Stat) -> Result<()> {
        self.time.set(NEW);
        Ok(())
    }

    fn has_same_content(&self, _: &[u8], _: &[u8]) -> Result<bool> {
        Ok(self.has_same_content)
    }

    fn attributes(&self, _: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(Vec::new())
    }

    fn set_attribute(&self, _: &[u8], _: &[u8], _: Option<&[u8]>) -> Result<()> {
        unreachable!("there is no attribute")
    }

    fn settle(&self, _: &[u8], like: &Stat) -> Result<()> {
        self.settled.borrow_mut().push(like.modified);
        Ok(())
    }

    fn link(&self, _: &[u8], _: &[u8]) -> Result<()> {
        unreachable!("the file has one name")
    }

    fn rename(&self, _: &[u8], _: &[u8]) -> Result<()> {
        unreachable!("nothing is renamed")
    }

    fn remove(&self, _: &[u8], _: Kind) -> Result<()> {
        unreachable!("nothing is removed")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// The kernel forgets a file that was written past its cache, and then shows the time that the server has (`docs/mount.md`).
#[test]
fn a_copy_gets_the_times_of_a_file_whose_content_was_not_changed() {
    for has_same_content in [true, false] {
        let settled = RefCell::default();
        let tree = Moving { time: Cell::new(10), has_same_content, settled };
        let (mut known, mut moved) = (BTreeMap::new(), Moved::default());
        let copied = copy_one(&tree, b"from", b"to", &file(10), &mut known, &mut moved);
        assert_eq!(copied.is_ok(), has_same_content, "{copied:?}");
        let last = tree.settled.borrow().last().copied();
        assert_eq!(last, Some((if has_same_content { NEW } else { 10 }, 0)));
    }
}
