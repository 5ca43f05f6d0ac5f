//! A language for calls of programs: lines such as `mkdir d 755; rmdir d/.`, and what they answer.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    self, Access, AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags,
    SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};

/// A program in a directory, with the files that it has open.
pub(super) struct Program {
    directory: String,
    files: Vec<OwnedFd>,
}

impl Program {
    pub(super) fn new(directory: String) -> Self {
        Self { directory, files: Vec::new() }
    }

    /// Makes the calls of a line, which `;` parts, and says what each answers.
    pub(super) fn run(&mut self, line: &str) -> String {
        let mut answers = Vec::new();
        for call in line.split(';') {
            let words: Vec<String> = call.split_whitespace().map(expanded).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            answers.push(self.call(&words).unwrap_or_else(name_of));
        }
        answers.join("; ")
    }

    fn path(&self, name: &str) -> String {
        match name {
            "''" => String::new(),
            name => format!("{}/{name}", self.directory),
        }
    }

    fn file(&self) -> Result<BorrowedFd<'_>> {
        self.files.last().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    fn call(&mut self, words: &[&str]) -> Result<String> {
        let found = self.of_names(words)?;
        let found = found.map_or_else(|| self.of_files(words), |found| Ok(Some(found)))?;
        let found = found.map_or_else(|| self.of_attributes(words), |found| Ok(Some(found)))?;
        let found = found.map_or_else(|| self.of_extended(words), |found| Ok(Some(found)))?;
        Ok(found.unwrap_or_else(|| panic!("no such call: {words:?}")))
    }

    /// Calls about names.
    fn of_names(&self, words: &[&str]) -> Result<Option<String>> {
        let path = |name: &str| self.path(name);
        match *words {
            ["mkdir", at, mode] => fs::mkdir(path(at), octal(mode))?,
            ["rmdir", at] => fs::rmdir(path(at))?,
            ["unlink", at] => fs::unlink(path(at))?,
            ["link", from, to] => fs::linkat(CWD, path(from), CWD, path(to), AtFlags::empty())?,
            ["linkfollow", from, to] => {
                fs::linkat(CWD, path(from), CWD, path(to), AtFlags::SYMLINK_FOLLOW)?;
            }
            ["linkfd", to] => fs::linkat(self.file()?, "", CWD, path(to), AtFlags::EMPTY_PATH)?,
            ["rename", from, to, ref flags @ ..] => {
                let flags = flags.iter().fold(RenameFlags::empty(), |all, flag| {
                    all | match *flag {
                        "noreplace" => RenameFlags::NOREPLACE,
                        "exchange" => RenameFlags::EXCHANGE,
                        "whiteout" => RenameFlags::WHITEOUT,
                        other => RenameFlags::from_bits_retain(number(other) as u32),
                    }
                });
                fs::renameat_with(CWD, path(from), CWD, path(to), flags)?;
            }
            ["symlink", target, at] => {
                fs::symlink(if target == "''" { "" } else { target }, path(at))?;
            }
            ["mknod", at, kind, mode, ref device @ ..] => {
                let kind = match kind {
                    "file" => FileType::RegularFile,
                    "fifo" => FileType::Fifo,
                    "socket" => FileType::Socket,
                    "char" => FileType::CharacterDevice,
                    "block" => FileType::BlockDevice,
                    "dir" => FileType::Directory,
                    "link" => FileType::Symlink,
                    other => FileType::from_raw_mode(octal(other).bits()),
                };
                let device = device.first().map_or(0, |device| number(device));
                fs::mknodat(CWD, path(at), kind, octal(mode), device)?;
            }
            ["readlink", at] => {
                let target = fs::readlink(path(at), Vec::new())?;
                return Ok(Some(short(target.as_bytes())));
            }
            ["names", at] => {
                let file = fs::open(path(at), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                let mut names = Vec::new();
                for entry in fs::Dir::read_from(&file)? {
                    names.push(entry?.file_name().to_string_lossy().into_owned());
                }
                names.sort();
                return Ok(Some(names.join(",")));
            }
            _ => return Ok(None),
        }
        Ok(Some("ok".to_owned()))
    }

    /// Calls about open files.
    fn of_files(&mut self, words: &[&str]) -> Result<Option<String>> {
        match *words {
            ["open", at, flags] => return self.open(at, flags, "644"),
            ["open", at, flags, mode] => return self.open(at, flags, mode),
            ["close"] => drop(self.files.pop()),
            ["write", at, len] => {
                let bytes = vec![b'w'; number(len) as usize];
                let done = rustix::io::pwrite(self.file()?, &bytes, number(at))?;
                return Ok(Some(done.to_string()));
            }
            ["append", len] => {
                let done = rustix::io::write(self.file()?, &vec![b'a'; number(len) as usize])?;
                return Ok(Some(done.to_string()));
            }
            ["read", at, len] => {
                let mut bytes = vec![0; number(len) as usize];
                let done = rustix::io::pread(self.file()?, &mut bytes, number(at))?;
                return Ok(Some(short(&bytes[..done])));
            }
            ["seek", whence, at] => {
                let to = match whence {
                    "data" => SeekFrom::Data(number(at)),
                    "hole" => SeekFrom::Hole(number(at)),
                    "end" => SeekFrom::End(number(at).cast_signed()),
                    _ => SeekFrom::Start(number(at)),
                };
                return Ok(Some(fs::seek(self.file()?, to)?.to_string()));
            }
            ["cut", size] => fs::ftruncate(self.file()?, number(size))?,
            ["allocate", flags, at, len] => {
                let flags = FallocateFlags::from_bits_retain(number(flags) as u32);
                fs::fallocate(self.file()?, flags, number(at), number(len))?;
            }
            ["fsync"] => fs::fsync(self.file()?)?,
            ["fdatasync"] => fs::fdatasync(self.file()?)?,
            ["copy", to, from_at, to_at, len] => {
                let to = fs::open(self.path(to), OFlags::WRONLY, Mode::empty())?;
                let (mut from_at, mut to_at) = (number(from_at), number(to_at));
                let (from, len) = (self.file()?, number(len) as usize);
                let done =
                    fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)?;
                return Ok(Some(done.to_string()));
            }
            ["flags"] => {
                return Ok(Some(format!("{:x}", fs::ioctl_getflags(self.file()?)?.bits())));
            }
            ["setflags", flags] => {
                let flags = IFlags::from_bits_retain(number(flags) as u32);
                fs::ioctl_setflags(self.file()?, flags)?;
            }
            _ => return Ok(None),
        }
        Ok(Some("ok".to_owned()))
    }

    fn open(&mut self, at: &str, flags: &str, mode: &str) -> Result<Option<String>> {
        let flags = flags.split('|').fold(OFlags::empty(), |all, flag| {
            all | match flag {
                "r" => OFlags::RDONLY,
                "w" => OFlags::WRONLY,
                "rw" => OFlags::RDWR,
                "creat" => OFlags::CREATE,
                "excl" => OFlags::EXCL,
                "trunc" => OFlags::TRUNC,
                "append" => OFlags::APPEND,
                "directory" => OFlags::DIRECTORY,
                "nofollow" => OFlags::NOFOLLOW,
                "tmpfile" => OFlags::TMPFILE,
                "path" => OFlags::PATH,
                "direct" => OFlags::DIRECT,
                "nonblock" => OFlags::NONBLOCK,
                "noatime" => OFlags::NOATIME,
                other => OFlags::from_bits_retain(number(other) as u32),
            }
        });
        self.files.push(fs::open(self.path(at), flags, octal(mode))?);
        Ok(Some("ok".to_owned()))
    }

    /// Calls about attributes, and who makes calls from now on.
    fn of_attributes(&self, words: &[&str]) -> Result<Option<String>> {
        let path = |name: &str| self.path(name);
        match *words {
            ["chmod", at, mode] => fs::chmod(path(at), octal(mode))?,
            ["chown", at, uid, gid] => chown(&path(at), uid, gid, AtFlags::empty())?,
            ["lchown", at, uid, gid] => chown(&path(at), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
            ["times", at, accessed, modified] => {
                let times =
                    Timestamps { last_access: time(accessed), last_modification: time(modified) };
                fs::utimensat(CWD, path(at), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            ["access", at, mode] => {
                let mode = Access::from_bits_retain(number(mode) as u32);
                // By the effective user.
                fs::accessat(CWD, path(at), mode, AtFlags::EACCESS)?;
            }
            ["stat", at, ref fields @ ..] => {
                let stat = fs::lstat(path(at))?;
                let all: Vec<String> = fields.iter().map(|field| shown(&stat, field)).collect();
                return Ok(Some(all.join(" ")));
            }
            ["as", uid, gid] => {
                let (uid, gid) = (Uid::from_raw(number(uid) as u32), number(gid) as u32);
                let gid = Gid::from_raw(gid);
                rustix::thread::set_thread_groups(&[])?;
                rustix::thread::set_thread_res_gid(gid, gid, gid)?;
                rustix::thread::set_thread_res_uid(uid, uid, uid)?;
            }
            _ => return Ok(None),
        }
        Ok(Some("ok".to_owned()))
    }

    /// Calls about extended attributes.
    fn of_extended(&self, words: &[&str]) -> Result<Option<String>> {
        let path = |name: &str| self.path(name);
        match *words {
            ["setx", at, name, text, ref flags @ ..] => {
                fs::setxattr(path(at), name, &value(text), xattr_flags(flags))?;
            }
            ["lsetx", at, name, text, ref flags @ ..] => {
                fs::lsetxattr(path(at), name, &value(text), xattr_flags(flags))?;
            }
            ["getx", at, name] => {
                let mut found = vec![0; 70_000];
                let len = fs::lgetxattr(path(at), name, &mut found[..])?;
                return Ok(Some(short(&found[..len])));
            }
            ["getx", at, name, most] => {
                let mut found = vec![0; number(most) as usize];
                let len = fs::lgetxattr(path(at), name, &mut found[..])?;
                return Ok(Some(len.to_string()));
            }
            ["listx", at] => {
                let mut found = vec![0; 70_000];
                let len = fs::llistxattr(path(at), &mut found[..])?;
                let names = found[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
                let mut names: Vec<String> = names.map(short).collect();
                names.sort();
                return Ok(Some(names.join(",")));
            }
            ["listx", at, most] => {
                let mut found = vec![0; number(most) as usize];
                return Ok(Some(fs::llistxattr(path(at), &mut found[..])?.to_string()));
            }
            ["remx", at, name] => fs::lremovexattr(path(at), name)?,
            _ => return Ok(None),
        }
        Ok(Some("ok".to_owned()))
    }
}

/// `n*255` stands for 255 times `n`.
fn expanded(word: &str) -> String {
    let mut text = String::new();
    for (index, part) in word.split('/').enumerate() {
        text.push_str(if index > 0 { "/" } else { "" });
        match part.split_once('*').and_then(|(one, count)| Some((one, count.parse().ok()?))) {
            Some((one, count)) => {
                // The part before the last character is there once.
                let (first, last) = one.split_at(one.len() - 1);
                text.push_str(first);
                text.push_str(&last.repeat(count));
            }
            None => text.push_str(part),
        }
    }
    text
}

fn number(word: &str) -> u64 {
    let (sign, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let parsed = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let parsed = parsed.unwrap_or_else(|_| panic!("no number: {word}"));
    if sign { parsed.wrapping_neg() } else { parsed }
}

fn octal(word: &str) -> Mode {
    Mode::from_bits_retain(u32::from_str_radix(word, 8).unwrap())
}

fn time(word: &str) -> Timespec {
    let (tv_sec, tv_nsec) = match word {
        "now" => (0, fs::UTIME_NOW),
        "omit" => (0, fs::UTIME_OMIT),
        word => {
            let (seconds, nanoseconds) = word.split_once('.').unwrap_or((word, "0"));
            (seconds.parse().unwrap(), nanoseconds.parse().unwrap())
        }
    };
    Timespec { tv_sec, tv_nsec }
}

fn chown(path: &str, uid: &str, gid: &str, flags: AtFlags) -> Result<()> {
    let id = |word: &str| (word != "-").then(|| number(word) as u32);
    fs::chownat(CWD, path, id(uid).map(Uid::from_raw), id(gid).map(Gid::from_raw), flags)
}

fn xattr_flags(words: &[&str]) -> XattrFlags {
    words.iter().fold(XattrFlags::empty(), |all, word| {
        all | match *word {
            "create" => XattrFlags::CREATE,
            "replace" => XattrFlags::REPLACE,
            other => XattrFlags::from_bits_retain(number(other) as u32),
        }
    })
}

/// A value: text, `hex:`, `-` for nothing, or an access list such as `acl:u7,u1000=6,g5,m7,o4`.
fn value(word: &str) -> Vec<u8> {
    if let Some(digits) = word.strip_prefix("hex:") {
        let pairs = digits.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        return pairs.map(byte).collect();
    }
    let Some(entries) = word.strip_prefix("acl:") else {
        return if word == "-" { Vec::new() } else { word.as_bytes().to_vec() };
    };
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for entry in entries.split(',').filter(|entry| !entry.is_empty()) {
        let (who, rest) = entry.split_at(1);
        let (id, permissions) = match rest.split_once('=') {
            Some((id, permissions)) => (id.parse().unwrap(), permissions),
            None => (u32::MAX, rest),
        };
        let tag: u16 = match (who, id) {
            ("u", u32::MAX) => 0x01,
            ("u", _) => 0x02,
            ("g", u32::MAX) => 0x04,
            ("g", _) => 0x08,
            ("m", _) => 0x10,
            ("o", _) => 0x20,
            other => panic!("no entry: {other:?}"),
        };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.parse::<u16>().unwrap().to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn shown(stat: &fs::Stat, field: &str) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    match field {
        "kind" => format!("{kind:?}"),
        "mode" => format!("{:o}", stat.st_mode & 0o7777),
        "owner" => format!("{}:{}", stat.st_uid, stat.st_gid),
        "size" => format!("{}", stat.st_size),
        "links" => format!("{}", stat.st_nlink),
        "device" => format!("{:x}", stat.st_rdev),
        "atime" => format!("{}.{:09}", stat.st_atime, stat.st_atime_nsec),
        "mtime" => format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec),
        other => panic!("no field: {other}"),
    }
}

/// Bytes as text: what repeats is counted, and what is no text is hexadecimal.
fn short(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        let byte = run[0];
        let plain = byte.is_ascii_graphic() && byte != b'\\';
        let one = if plain { char::from(byte).to_string() } else { format!("\\{byte:02x}") };
        if run.len() > 3 {
            let _ = write!(text, "{one}*{}", run.len());
        } else {
            text.push_str(&one.repeat(run.len()));
        }
    }
    format!("'{text}'")
}

fn name_of(errno: Errno) -> String {
    let known = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::NXIO, "ENXIO"),
        (Errno::TOOBIG, "E2BIG"),
        (Errno::BADF, "EBADF"),
        (Errno::ACCESS, "EACCES"),
        (Errno::FAULT, "EFAULT"),
        (Errno::NOTBLK, "ENOTBLK"),
        (Errno::BUSY, "EBUSY"),
        (Errno::EXIST, "EEXIST"),
        (Errno::XDEV, "EXDEV"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NOTTY, "ENOTTY"),
        (Errno::TXTBSY, "ETXTBSY"),
        (Errno::FBIG, "EFBIG"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::SPIPE, "ESPIPE"),
        (Errno::ROFS, "EROFS"),
        (Errno::MLINK, "EMLINK"),
        (Errno::PIPE, "EPIPE"),
        (Errno::RANGE, "ERANGE"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::LOOP, "ELOOP"),
        (Errno::NODATA, "ENODATA"),
        (Errno::OVERFLOW, "EOVERFLOW"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::STALE, "ESTALE"),
        (Errno::DQUOT, "EDQUOT"),
    ];
    let found = known.iter().find(|(known, _)| *known == errno);
    found.map_or_else(|| format!("E{}", errno.raw_os_error()), |(_, name)| (*name).to_owned())
}
