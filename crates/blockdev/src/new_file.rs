//! Files that appear under their name only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

/// Suffix of a file's name until it is complete.
pub const UNFINISHED: &str = ".unfinished";

/// Length of the longest chain of symbolic links that Linux follows.
const MOST_LINKS: usize = 40;

/// A file being written as `NAME.unfinished`. [`finish`](Self::finish) renames it to its final
/// name; dropping it earlier removes it. The remains of a killed process are removed when the file
/// is created again.
#[derive(Debug)]
pub struct NewFile {
    /// The final name.
    path: PathBuf,
    /// The name until then; `None` for a pipe or a character device, which is written directly.
    unfinished: Option<PathBuf>,
    file: File,
    replaces: bool,
    finished: bool,
}

impl NewFile {
    /// A file for a name that is free.
    ///
    /// `mode` is that of a new file, such as 0o600, less the umask. `head` is the first bytes of
    /// every file of this kind: an unfinished file that starts otherwise is not overwritten.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name is taken, or if the unfinished name belongs to
    /// a file of another kind; [`io::ErrorKind::ResourceBusy`] if another process is writing it;
    /// and those of creating a file.
    pub fn create(path: &Path, mode: u32, head: &[u8]) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok() {
            let why = "a file of this name exists already, and is not replaced";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Self::unfinished(path.to_owned(), mode, head, false)
    }

    /// A file that replaces the one at `path`, if there is one. Symbolic links are followed; pipes
    /// and character devices are written, not replaced.
    ///
    /// # Errors
    /// Those of [`create`](Self::create), except for a name that is taken. A block device or a
    /// folder is [`io::ErrorKind::InvalidInput`].
    pub fn replacing(path: &Path, mode: u32, head: &[u8]) -> io::Result<Self> {
        let path = match fs::metadata(path) {
            Ok(found) if found.is_file() => fs::canonicalize(path)?,
            Ok(found) if found.is_dir() || is_block_device(&found) => {
                let why = "this is a folder or a block device, and cannot be replaced by a file";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Ok(_) => {
                let (path, file) = (path.to_owned(), OpenOptions::new().write(true).open(path)?);
                return Ok(Self { path, unfinished: None, file, replaces: true, finished: true });
            }
            Err(_) => end_of_links(path),
        };
        Self::unfinished(path, mode, head, true)
    }

    fn unfinished(path: PathBuf, mode: u32, head: &[u8], replaces: bool) -> io::Result<Self> {
        let mut name = OsString::from(&path);
        name.push(UNFINISHED);
        let name = PathBuf::from(name);
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(mode);
        loop {
            let file = match how.open(&name) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_remains(&name, head)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            lock(&file, &name)?;
            // Before this process locked the file, another may have removed it as the remains of a
            // killed process.
            if has_name(&file, &name) {
                return Ok(Self { path, unfinished: Some(name), file, replaces, finished: false });
            }
        }
    }

    /// The file, open for reading and writing.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file and makes both durable.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name of a file that must be new was taken meanwhile;
    /// and those of writing. The unfinished file is removed then.
    pub fn finish(mut self) -> io::Result<File> {
        if let Some(unfinished) = &self.unfinished {
            self.file.sync_all()?;
            match self.replaces {
                true => fs::rename(unfinished, &self.path)?,
                false => rename_to_free(unfinished, &self.path)?,
            }
            self.finished = true;
            sync_folder_of(&self.path)?;
        }
        self.file.try_clone()
    }

    /// Replaces the file at `path` by one with these bytes.
    ///
    /// # Errors
    /// Those of [`replacing`](Self::replacing) and [`finish`](Self::finish).
    pub fn replace(path: &Path, mode: u32, head: &[u8], bytes: &[u8]) -> io::Result<()> {
        let mut new = Self::replacing(path, mode, head)?;
        new.file.write_all(bytes)?;
        new.finish().map(drop)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let (Some(unfinished), false) = (&self.unfinished, self.finished) {
            // This process made the file. If removing it fails, its name shows that it is
            // unfinished.
            let _ = fs::remove_file(unfinished);
        }
    }
}

fn is_block_device(found: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&found.file_type())
}

/// The path where a file created at `path` appears if `path` is a dangling symbolic link.
fn end_of_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = folder_of(&path).join(target);
    }
    path
}

/// Removes the unfinished file of a killed process.
fn remove_remains(name: &Path, head: &[u8]) -> io::Result<()> {
    let in_the_way = || {
        let why = format!("{} is in the way", name.display());
        io::Error::new(io::ErrorKind::AlreadyExists, why)
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return Err(in_the_way()),
    };
    if !file.metadata()?.is_file() {
        return Err(in_the_way());
    }
    lock(&file, name)?;
    let mut begun = Vec::new();
    (&mut file).take(head.len() as u64).read_to_end(&mut begun)?;
    if !head.starts_with(&begun) {
        return Err(in_the_way());
    }
    match has_name(&file, name) {
        true => fs::remove_file(name),
        false => Ok(()),
    }
}

/// Locks an unfinished file while it is open. A process that finds it unlocked knows that its
/// writer is gone.
fn lock(file: &File, name: &Path) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // Some network file systems do not support locks.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let why = format!("another process is writing {}", name.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Whether `name` is this very file (same device and inode).
fn has_name(file: &File, name: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(name)) {
        (Ok(file), Ok(named)) => (file.dev(), file.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Renames without replacing.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // For file systems without that: a hard link, which never replaces a name.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        result => Ok(result?),
    }
}

/// Makes the name of a new file durable by syncing its folder.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &[u8] = b"HEAD";

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let new = NewFile::create(&path, 0o600, HEAD).unwrap();
        new.file().write_all(b"HEAD and more").unwrap();
        assert_eq!(names(folder.path()), ["new.unfinished"]);
        // A second process is refused.
        let met = NewFile::create(&path, 0o600, HEAD).unwrap_err();
        assert_eq!(met.kind(), io::ErrorKind::ResourceBusy, "{met}");
        new.finish().unwrap();
        assert_eq!(names(folder.path()), ["new"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let taken = NewFile::create(&path, 0o600, HEAD).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        drop(NewFile::replacing(&path, 0o600, HEAD).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"HEAD and more");
        NewFile::replace(&path, 0o600, HEAD, b"HEAD anew").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"HEAD anew");
        assert_eq!(names(folder.path()), ["new"]);
    }

    #[test]
    fn remains_of_a_killed_process_go_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (path, unfinished) = (folder.path().join("new"), folder.path().join("new.unfinished"));
        for remains in [&b""[..], b"HE", b"HEAD", b"HEAD and more"] {
            fs::write(&unfinished, remains).unwrap();
            NewFile::create(&path, 0o600, HEAD).unwrap().finish().unwrap();
            assert_eq!(names(folder.path()), ["new"]);
            fs::remove_file(&path).unwrap();
        }
        // Images of file systems begin with zeroes.
        for other in [&b"something else"[..], &[0; 9000]] {
            fs::write(&unfinished, other).unwrap();
            let error = NewFile::replacing(&path, 0o600, HEAD).unwrap_err();
            assert!(error.to_string().contains("in the way"), "{error}");
            assert_eq!(fs::read(&unfinished).unwrap(), other);
        }
        fs::remove_file(&unfinished).unwrap();
        let target = folder.path().join("target");
        fs::write(&target, b"HEAD").unwrap();
        symlink(&target, &unfinished).unwrap();
        assert!(NewFile::create(&path, 0o600, HEAD).is_err());
        assert_eq!(names(folder.path()), ["new.unfinished", "target"]);
    }

    #[test]
    fn a_name_that_was_taken_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let new = NewFile::create(&path, 0o600, HEAD).unwrap();
        fs::write(&path, "theirs").unwrap();
        assert_eq!(new.finish().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert_eq!(names(folder.path()), ["new"]);
    }

    #[test]
    fn links_stay_links_and_devices_stay_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink("target", &link).unwrap();
        for content in [&b"HEAD 1"[..], b"HEAD 2"] {
            NewFile::replace(&link, 0o644, HEAD, content).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read(&target).unwrap(), content);
        }
        NewFile::replace(Path::new("/dev/null"), 0o644, HEAD, b"HEAD").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let folder = NewFile::replacing(folder.path(), 0o644, HEAD).unwrap_err();
        assert_eq!(folder.kind(), io::ErrorKind::InvalidInput);
        assert!(NewFile::replace(Path::new("/dev/full"), 0o644, HEAD, b"HEAD").is_err());
    }
}
