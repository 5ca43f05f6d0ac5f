//! A sequential file system of two directories, three names in each, two open files of up to two pages, and two extended
//! attributes: small enough that all of its states within a few calls can be tried.
//!
//! Numbers of inodes are opaque. Times are one flag, "changed since the pair began", because both orders of two changes end
//! with the later time.

/// Inodes of a state: two open files, and some that calls create.
const INODES: usize = 6;
/// Pages of a file at most.
pub(crate) const PAGES: usize = 2;

/// A call of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Open(Name),
    Create(Name),
    Link(u8, Name),
    Unlink(Name),
    Rename(Name, Name),
    Mkdir(Name),
    Rmdir(Name),
    Stat(u8),
    StatDirectory(u8),
    Read(u8, u8),
    Write(u8, u8, u8),
    Truncate(u8, u8),
    Seek(u8, u8),
    List(u8),
    GetAttribute(u8, u8),
    SetAttribute(u8, u8, u8),
    RemoveAttribute(u8, u8),
    Fsync(u8),
    FsyncDirectory(u8),
    Sync,
}

/// A name in one of the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) directory: u8,
    pub(crate) name: u8,
}

/// The result of a call as a program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Done,
    /// An open file (0 or 1), another file (2), or a directory (3).
    Found(u8),
    Status {
        links: u8,
        pages: u8,
        touched: bool,
    },
    /// Bytes of a page, each with this value; `None` behind the end.
    Bytes(Option<u8>),
    /// Which names a directory has, as bits.
    Names(u8),
    At(u8),
    Value(u8),
    Missing,
    Exists,
    IsDirectory,
    NotDirectory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inode {
    is_directory: bool,
    links: u8,
    pages: u8,
    bytes: [u8; PAGES],
    /// Pages that were written since they were behind the end: the others are holes.
    stored: [bool; PAGES],
    attributes: [u8; 2],
    touched: bool,
}

/// A state of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    inodes: [Option<Inode>; INODES],
    names: [[Option<u8>; 3]; 2],
    touched: [bool; 2],
    subdirectories: [u8; 2],
}

const NEW: Inode = Inode {
    is_directory: false,
    links: 1,
    pages: 0,
    bytes: [0; PAGES],
    stored: [false; PAGES],
    attributes: [0; 2],
    touched: false,
};

impl Model {
    /// Each directory has an empty file with the first name. Both are open.
    pub(crate) fn start() -> Self {
        let mut inodes = [None; INODES];
        inodes[..2].fill(Some(NEW));
        let names = [[Some(0), None, None], [Some(1), None, None]];
        Self { inodes, names, touched: [false; 2], subdirectories: [0; 2] }
    }

    fn at(&mut self, name: Name) -> &mut Option<u8> {
        &mut self.names[usize::from(name.directory)][usize::from(name.name)]
    }

    fn inode(&mut self, inode: u8) -> &mut Inode {
        // Names and handles lead to inodes that exist.
        self.inodes[usize::from(inode)].as_mut().expect("it exists")
    }

    fn is_directory(&self, inode: u8) -> bool {
        self.inodes[usize::from(inode)].is_some_and(|inode| inode.is_directory)
    }

    /// Which kind of thing a name leads to: nothing, an open file, another file, a directory.
    pub(crate) fn found(&self, name: Name) -> Option<(u8, u8)> {
        let inode = self.names[usize::from(name.directory)][usize::from(name.name)]?;
        let kind = if inode < 2 { inode } else { 2 + u8::from(self.is_directory(inode)) };
        Some((kind, inode))
    }

    /// Whether an open file has a name, without which it cannot be linked.
    pub(crate) fn has_name(&self, handle: u8) -> bool {
        self.inodes[usize::from(handle)].is_some_and(|inode| inode.links > 0)
    }

    /// Whether a call can create something.
    pub(crate) fn has_room(&self) -> bool {
        self.inodes.iter().filter(|inode| inode.is_none()).count() >= 2
    }

    /// The state with times forgotten and numbers of inodes in the order of the names, so that equal states are equal.
    pub(crate) fn canonical(mut self) -> Self {
        let mut order: [Option<u8>; INODES] = [None; INODES];
        (order[0], order[1]) = (Some(0), Some(1));
        let mut next = 2;
        for name in self.names.iter_mut().flatten() {
            let Some(inode) = name else { continue };
            let new = *order[usize::from(*inode)].get_or_insert_with(|| {
                next += 1;
                next - 1
            });
            *inode = new;
        }
        let mut inodes = [None; INODES];
        for (old, new) in order.iter().enumerate() {
            if let Some(new) = new {
                inodes[usize::from(*new)] = self.inodes[old];
            }
        }
        Self { inodes, ..self }
    }

    /// The state with no time changed.
    pub(crate) fn settled(mut self) -> Self {
        self.inodes.iter_mut().flatten().for_each(|inode| inode.touched = false);
        self.touched = [false; 2];
        self
    }

    fn touch(&mut self, directory: u8) {
        self.touched[usize::from(directory)] = true;
    }

    fn create(&mut self, name: Name, is_directory: bool) -> Outcome {
        if self.at(name).is_some() {
            return Outcome::Exists;
        }
        let free = self.inodes.iter().position(Option::is_none).expect("the caller saw room");
        self.inodes[free] = Some(Inode { is_directory, ..NEW });
        *self.at(name) = Some(free as u8);
        self.subdirectories[usize::from(name.directory)] += u8::from(is_directory);
        self.touch(name.directory);
        Outcome::Done
    }

    fn lose(&mut self, inode: u8) {
        let gone = self.inode(inode);
        gone.links -= 1;
        gone.touched = true;
        if gone.links == 0 && inode >= 2 {
            self.inodes[usize::from(inode)] = None;
        }
    }

    fn unlink(&mut self, name: Name, directory: bool) -> Outcome {
        let Some(inode) = *self.at(name) else { return Outcome::Missing };
        match (directory, self.is_directory(inode)) {
            (false, true) => return Outcome::IsDirectory,
            (true, false) => return Outcome::NotDirectory,
            _ => {}
        }
        *self.at(name) = None;
        self.subdirectories[usize::from(name.directory)] -= u8::from(directory);
        self.touch(name.directory);
        self.lose(inode);
        Outcome::Done
    }

    fn rename(&mut self, from: Name, to: Name) -> Outcome {
        let Some(moved) = *self.at(from) else { return Outcome::Missing };
        let target = *self.at(to);
        if target == Some(moved) {
            return Outcome::Done;
        }
        let is_directory = self.is_directory(moved);
        if let Some(target) = target {
            match (is_directory, self.is_directory(target)) {
                (true, false) => return Outcome::NotDirectory,
                (false, true) => return Outcome::IsDirectory,
                _ => {}
            }
        }
        *self.at(from) = None;
        *self.at(to) = Some(moved);
        if is_directory {
            self.subdirectories[usize::from(from.directory)] -= 1;
            self.subdirectories[usize::from(to.directory)] += u8::from(target.is_none());
        }
        self.touch(from.directory);
        self.touch(to.directory);
        self.inode(moved).touched = true;
        if let Some(target) = target {
            self.lose(target);
        }
        Outcome::Done
    }

    fn resize(&mut self, handle: u8, pages: u8) {
        let inode = self.inode(handle);
        inode.pages = pages;
        inode.touched = true;
        inode.bytes[usize::from(pages)..].fill(0);
        inode.stored[usize::from(pages)..].fill(false);
    }

    /// Makes a call.
    #[expect(clippy::too_many_lines, reason = "an arm for each call")]
    pub(crate) fn call(&mut self, call: Call) -> Outcome {
        match call {
            Call::Open(name) => {
                self.found(name).map_or(Outcome::Missing, |(kind, _)| Outcome::Found(kind))
            }
            Call::Create(name) => self.create(name, false),
            Call::Mkdir(name) => self.create(name, true),
            Call::Unlink(name) => self.unlink(name, false),
            Call::Rmdir(name) => self.unlink(name, true),
            Call::Rename(from, to) => self.rename(from, to),
            Call::Link(handle, name) => {
                if self.at(name).is_some() {
                    return Outcome::Exists;
                }
                *self.at(name) = Some(handle);
                let inode = self.inode(handle);
                inode.links += 1;
                inode.touched = true;
                self.touch(name.directory);
                Outcome::Done
            }
            Call::Stat(handle) => {
                let Inode { links, pages, touched, .. } = *self.inode(handle);
                Outcome::Status { links, pages, touched }
            }
            Call::StatDirectory(directory) => {
                let links = 2 + self.subdirectories[usize::from(directory)];
                let touched = self.touched[usize::from(directory)];
                Outcome::Status { links, pages: 0, touched }
            }
            Call::Read(handle, page) => {
                let inode = self.inode(handle);
                let there = page < inode.pages;
                Outcome::Bytes(there.then(|| inode.bytes[usize::from(page)]))
            }
            Call::Write(handle, page, value) => {
                let pages = self.inode(handle).pages.max(page + 1);
                self.resize(handle, pages);
                self.inode(handle).bytes[usize::from(page)] = value;
                self.inode(handle).stored[usize::from(page)] = true;
                Outcome::Done
            }
            Call::Truncate(handle, pages) => {
                self.resize(handle, pages);
                Outcome::Done
            }
            Call::Seek(handle, page) => {
                let inode = self.inode(handle);
                let hole = (page..inode.pages).find(|page| !inode.stored[usize::from(*page)]);
                match inode.pages {
                    pages if page >= pages => Outcome::Missing,
                    pages => Outcome::At(hole.unwrap_or(pages)),
                }
            }
            Call::List(directory) => {
                let names = self.names[usize::from(directory)].iter().enumerate();
                Outcome::Names(names.map(|(bit, name)| u8::from(name.is_some()) << bit).sum())
            }
            Call::GetAttribute(handle, which) => {
                match self.inode(handle).attributes[usize::from(which)] {
                    0 => Outcome::Missing,
                    value => Outcome::Value(value),
                }
            }
            Call::SetAttribute(handle, which, value) => {
                self.inode(handle).touched = true;
                self.inode(handle).attributes[usize::from(which)] = value;
                Outcome::Done
            }
            Call::RemoveAttribute(handle, which) => {
                let inode = self.inode(handle);
                if inode.attributes[usize::from(which)] == 0 {
                    return Outcome::Missing;
                }
                inode.attributes[usize::from(which)] = 0;
                inode.touched = true;
                Outcome::Done
            }
            Call::Fsync(_) | Call::FsyncDirectory(_) | Call::Sync => Outcome::Done,
        }
    }
}
