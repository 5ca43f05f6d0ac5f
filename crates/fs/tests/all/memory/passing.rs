//! Changes that the disk makes at once: memory follows them, so that a directory is read once however many of its names change.

use anyhow::{Result, ensure};
use floe_blockdev::{MemDevice, Model, Modelled};
use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_fs::{
    Applied, Attributes, Change, Deed, Directory, Facts, FsError, Limits, Lower, MemFs, NewInode,
    NullDisk, Op, OpKind, Place, RenameMode, SeekFor, Space, Store,
};
use floe_sync::Arc;
use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_testkit::{Image, build, tool};

use super::live::{NOW, judge, mounted};

/// A disk that counts the names that it hands out.
struct Counting {
    disk: NullDisk,
    names: AtomicUsize,
}

impl Store for Counting {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.disk.attributes(inode)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        let names = self.disk.directory(inode)?;
        self.names.fetch_add(names.len(), Ordering::Relaxed);
        Ok(names)
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        self.disk.read(inode, offset_bytes, into)
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.disk.seek(inode, offset_bytes, what)
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.disk.target(inode)
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        self.disk.extended_attributes(inode)
    }

    fn space(&self) -> Space {
        self.disk.space()
    }

    fn block_bytes(&self) -> u32 {
        self.disk.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        self.disk.apply(op)
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        self.disk.release(inode)
    }

    fn sync(&self) -> Result<(), FsError> {
        self.disk.sync()
    }
}

impl Lower for Counting {
    fn facts(&self) -> Facts {
        self.disk.facts()
    }

    fn reserve_inodes(
        &self,
        directory: InodeNr,
        is_directory: bool,
        most: usize,
    ) -> Result<Vec<floe_disk::ops::Reserved>, FsError> {
        self.disk.reserve_inodes(directory, is_directory, most)
    }

    fn give_back(&self, inode: InodeNr) {
        self.disk.give_back(inode);
    }

    fn make(&self, deeds: &[Deed<'_>], content: floe_fs::Carried) -> (usize, Result<(), FsError>) {
        self.disk.make(deeds, content)
    }
}

fn apply<S: Store>(store: &S, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
    Ok(store.apply(&Op { uid: 0, gid: 0, time: NOW, kind })?.created)
}

fn create<S: Store>(
    store: &S,
    directory: InodeNr,
    name: &str,
    new: NewInode<'_>,
) -> Result<InodeNr> {
    let place = Place { directory, name: name.as_bytes() };
    Ok(apply(store, OpKind::Create { place, new })?.expect("a creation makes an inode"))
}

/// The names of a directory with what they lead to.
fn names<S: Store>(store: &S, directory: InodeNr) -> Result<Vec<(Box<[u8]>, InodeNr)>> {
    let names = store.directory(directory)?;
    Ok(names.behind(0).map(|(_, entry)| (entry.name.clone(), entry.inode)).collect())
}

/// Every kind of change of names by two threads, in directories with many names; returns how many names the disk handed out.
fn change(limits: Limits, free_blocks: u64) -> Result<usize> {
    let disk = Counting { disk: NullDisk::new(100_000, free_blocks), names: AtomicUsize::new(0) };
    let memory = MemFs::new(disk, limits);
    let top = |name: &str| create(&memory, InodeNr::ROOT, name, NewInode::directory(0o755));
    let (one, other) = (top("one")?, top("other")?);
    std::thread::scope(|scope| {
        let work = |directory: InodeNr| {
            for number in 0..250 {
                let place = |name| Place { directory, name };
                let names = ["file", "link", "moved", "new"].map(|kind| format!("{kind} {number}"));
                let [_, link, moved, new] = names.each_ref().map(|name| name.as_bytes());
                let inode = create(&memory, directory, &names[0], NewInode::regular(0o644))?;
                apply(&memory, OpKind::Link { inode, place: place(link) })?;
                let (from, to) = (place(link), place(moved));
                apply(&memory, OpKind::Rename { from, to, mode: RenameMode::NoReplace })?;
                create(&memory, directory, &names[3], NewInode::directory(0o755))?;
                match number % 3 {
                    0 => apply(&memory, OpKind::Unlink(place(moved)))?,
                    1 => apply(&memory, OpKind::RemoveDirectory(place(new)))?,
                    _ => None,
                };
            }
            anyhow::Ok(())
        };
        let [one, other] = [one, other].map(|directory| scope.spawn(move || work(directory)));
        one.join().expect("no panic")?;
        other.join().expect("no panic")
    })?;
    // The directories themselves move.
    let place = |name| Place { directory: InodeNr::ROOT, name };
    let (from, to) = (place(b"one"), Place { directory: other, name: b"one" });
    apply(&memory, OpKind::Rename { from, to, mode: RenameMode::Replace })?;
    ensure!(memory.parent(one)? == other, "a directory that moved");
    for directory in [InodeNr::ROOT, one, other] {
        ensure!(!names(&memory, directory)?.is_empty());
    }
    let handed_out = memory.lower().names.load(Ordering::Relaxed);
    memory.sync()?;
    for directory in [InodeNr::ROOT, one, other] {
        let (seen, stored) = (names(&memory, directory)?, names(&memory.lower().disk, directory)?);
        ensure!(seen == stored, "memory and disk differ in {directory}");
    }
    Ok(handed_out)
}

#[test]
fn a_directory_is_read_once_however_many_changes_pass() {
    let immediate = Limits { immediate: true, ..Limits::default() };
    // The second disk has too little room for anything to wait, the third too little for much.
    for (limits, free_blocks) in
        [(immediate, 1 << 20), (Limits::default(), 60), (Limits::default(), 2000)]
    {
        let handed_out = change(limits, free_blocks).unwrap();
        // Each directory was empty when it was read.
        assert!(handed_out < 100, "{free_blocks} blocks: {handed_out} names were read again");
    }
}

/// The image of a file system in which directories may fold case.
fn folding() -> MemDevice {
    let image = Image::empty(8 << 20).unwrap();
    let kind = ["-t", "ext4", "-b", "1024", "-O", "casefold", "-E", "encoding=utf8", "-N", "4096"];
    build::mke2fs(image.path(), &kind).unwrap();
    MemDevice::new(image.to_vec().unwrap())
}

fn fold<S: Store>(store: &S, inode: InodeNr) -> Result<()> {
    let flags = Some(store.attributes(inode)?.flags | InodeFlags::CASEFOLD);
    let change = Change { flags, ..Change::default() };
    apply(store, OpKind::Change { inode, size_bytes: None, change })?;
    Ok(())
}

/// In a directory that folds case, too, a change reads as many blocks whether there are a hundred names or a thousand.
#[test]
fn a_directory_that_folds_case_is_read_once() {
    if tool::missing() {
        return;
    }
    let device = Modelled::new(folding(), &Model::flushes(std::time::Duration::ZERO));
    mounted(&device, Limits::default(), |memory| {
        let top = create(memory, InodeNr::ROOT, "folds", NewInode::directory(0o755))?;
        fold(memory, top)?;
        let mut reads = Vec::new();
        for hundred in 0..12 {
            let before = device.reads();
            for number in 0..100 {
                let name = format!("A name of usual length {hundred} {number}");
                let inode = create(memory, top, &name, NewInode::regular(0o644))?;
                let moved = format!("Moved {hundred} {number}");
                let (lower, upper) = (name.to_lowercase(), name.to_uppercase());
                let place = |name| Place { directory: top, name };
                let found = memory.find(top, lower.as_bytes())?;
                ensure!(found == Some(inode), "{name}: {found:?}");
                if number % 4 == 0 {
                    apply(memory, OpKind::Unlink(place(upper.as_bytes())))?;
                    ensure!(memory.find(top, name.as_bytes())?.is_none(), "{name} is there");
                    memory.release(inode)?;
                } else if number % 4 == 1 {
                    let (from, to) = (place(upper.as_bytes()), place(moved.as_bytes()));
                    apply(memory, OpKind::Rename { from, to, mode: RenameMode::Replace })?;
                }
            }
            memory.sync()?;
            reads.push(device.reads() - before);
        }
        // Blocks are read again when the journal is full and has written them home: now and then, not for each change.
        let (second, last) = (reads[1], reads[10].min(reads[11]));
        ensure!(last < 2 * second, "{reads:?} reads of blocks for each hundred files");
        ensure!(names(memory, top)? == names(memory.lower(), top)?, "memory and disk differ");
        Ok(())
    })
    .unwrap();
    judge(device.inner(), true).unwrap();
}

/// Names and directories that change places, with case and without: memory says what the disk has.
#[test]
fn names_that_change_places_are_followed() {
    if tool::missing() {
        return;
    }
    let device = folding();
    mounted(&device, Limits::default(), |memory| {
        let top = |name: &str| create(memory, InodeNr::ROOT, name, NewInode::directory(0o755));
        let (folds, plain) = (top("folds")?, top("plain")?);
        fold(memory, folds)?;
        for directory in [folds, plain] {
            for (name, new) in [
                ("File", NewInode::regular(0o644)),
                ("Inner", NewInode::directory(0o755)),
                ("Other", NewInode::regular(0o644)),
            ] {
                create(memory, directory, name, new)?;
            }
        }
        let place = |directory, name: &'static str| Place { directory, name: name.as_bytes() };
        let inner = memory.find(plain, b"Inner")?.expect("it was created");
        let file = memory.find(folds, b"file")?.expect("it was created");
        let moves = [
            (place(folds, "FILE"), place(plain, "Inner"), RenameMode::Exchange),
            (place(folds, "file"), place(folds, "OTHER"), RenameMode::Exchange),
            (place(plain, "Other"), place(folds, "inNER"), RenameMode::Exchange),
            (place(plain, "Inner"), place(plain, "Inner"), RenameMode::Replace),
            (place(plain, "File"), place(folds, "oTHER 2"), RenameMode::Whiteout),
            (place(folds, "other 2"), place(folds, "Other 2"), RenameMode::Replace),
        ];
        for (from, to, mode) in moves {
            apply(memory, OpKind::Rename { from, to, mode })?;
            for directory in [InodeNr::ROOT, folds, plain] {
                let (seen, stored) = (names(memory, directory)?, names(memory.lower(), directory)?);
                ensure!(seen == stored, "{from:?} {to:?} {mode:?}: {seen:?} is not {stored:?}");
            }
        }
        ensure!(memory.find(plain, b"Inner")? == Some(file), "the file changed places");
        ensure!(memory.parent(inner)? == folds, "a directory that changed places");
        ensure!(memory.lower().parent(inner)? == folds);
        Ok(())
    })
    .unwrap();
    judge(&device, true).unwrap();
}

/// Memory refuses some changes by the sorts of names alone. Where flags of an inode forbid more, the disk's reason counts.
#[test]
fn refusals_follow_the_flags_of_what_names_lead_to() {
    if tool::missing() {
        return;
    }
    let device = folding();
    mounted(&device, Limits::default(), |memory| {
        let file = create(memory, InodeNr::ROOT, "file", NewInode::regular(0o644))?;
        create(memory, InodeNr::ROOT, "directory", NewInode::directory(0o755))?;
        let place = |name: &'static str| Place { directory: InodeNr::ROOT, name: name.as_bytes() };
        let rename = |from, to, mode| OpKind::Rename { from: place(from), to: place(to), mode };
        let answers = || {
            let changes = [
                OpKind::RemoveDirectory(place("file")),
                OpKind::Unlink(place("directory")),
                rename("file", "file", RenameMode::Replace),
                rename("directory", "file", RenameMode::Replace),
                rename("file", "directory", RenameMode::Replace),
                rename("file", "directory", RenameMode::NoReplace),
            ];
            changes.map(|kind| match memory.apply(&Op { uid: 0, gid: 0, time: NOW, kind }) {
                Ok(_) => "done",
                Err(FsError::NotADirectory) => "no directory",
                Err(FsError::IsADirectory) => "a directory",
                Err(FsError::Exists) => "exists",
                Err(FsError::NotPermitted) => "forbidden",
                Err(_) => "another error",
            })
        };
        let plain =
            ["no directory", "a directory", "done", "no directory", "a directory", "exists"];
        ensure!(answers() == plain, "{:?}", answers());
        let flags = memory.attributes(file)?.flags;
        for (fixed, wanted) in [
            (InodeFlags::IMMUTABLE, ["forbidden", "a directory"]),
            (InodeFlags::empty(), ["no directory", "a directory"]),
        ] {
            let change = Change { flags: Some(flags | fixed), ..Change::default() };
            apply(memory, OpKind::Change { inode: file, size_bytes: None, change })?;
            let now = answers();
            ensure!(now[..2] == wanted, "{fixed:?}: {now:?}");
            let is_fixed = !fixed.is_empty();
            ensure!(now[2..].iter().all(|one| *one == "forbidden") == is_fixed, "{now:?}");
        }
        Ok(())
    })
    .unwrap();
}
