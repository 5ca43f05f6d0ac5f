//! Requests over a carrier in memory, as the kernel sends them.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::sync::{Arc, Barrier};
use std::time::Duration;

use floe_check::{CheckOptions, view};
use floe_format::InodeNr;
use floe_fs::{
    AccessTimes, Applied, Attribute, Attributes, Directory, FileSystem, FsError, Image, Limits,
    MemFs, NullDisk, Op, OpKind, SeekFor, Space, Store,
};
use floe_fuse::abi::Opcode;
use floe_fuse::{MemoryCarrier, ServeOptions, serve};
use floe_testkit::{Profile, build, tool};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A request about an inode.
fn request(opcode: Opcode, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(40 + body.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(len.to_le_bytes());
    bytes.extend((opcode as u32).to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

/// An answer: the error, which request it belongs to, and what follows.
fn answer(carrier: &MemoryCarrier) -> (i32, u64, Vec<u8>) {
    let bytes = carrier.answer();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0) as usize, bytes.len());
    let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (word(4).cast_signed(), unique, bytes[16..].to_vec())
}

/// Serves the image of a profile to `kernel`, after the negotiation.
fn with_server(profile: Profile, kernel: impl FnOnce(&MemoryCarrier)) {
    let image = build::base(profile).unwrap();
    view(&image, &CheckOptions::default(), |files, _| {
        let fs = FileSystem::new(Image::new(files));
        served(&fs, &ServeOptions::default(), |carrier, taken| {
            assert_eq!(taken & WRITEBACK_CACHE, 0, "nothing is written");
            kernel(carrier);
        });
    })
    .unwrap();
}

/// `FUSE_WRITEBACK_CACHE`.
const WRITEBACK_CACHE: u32 = 1 << 16;

/// Serves a file system to `kernel`, which gets the flags that were agreed on.
fn served<S: Store>(
    fs: &FileSystem<S>,
    options: &ServeOptions,
    kernel: impl FnOnce(&MemoryCarrier, u32),
) {
    let carrier = MemoryCarrier::default();
    let log = |_: &str| {};
    floe_sync::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&carrier, fs, options, &log, || {}));
        carrier.ask(request(Opcode::Init, 1, 0, &offer()));
        let (error, unique, taken) = answer(&carrier);
        assert_eq!((error, unique, taken.len()), (0, 1, 64));
        {
            // Ends the server although a test fails.
            let _mounted = Unmount(&carrier);
            kernel(&carrier, u32::from_le_bytes(taken[12..16].try_into().unwrap()));
        }
        server.join().unwrap().unwrap();
    });
}

/// All that the kernel may offer.
fn offer() -> Vec<u8> {
    let words = [7, 45, 131_072, u32::MAX];
    let numbers: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    [&numbers[..], &[0xff; 48]].concat()
}

/// Unmounts when it is dropped.
struct Unmount<'c>(&'c MemoryCarrier);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        self.0.unmount();
    }
}

/// Asks for something that must go well.
fn must(kernel: &MemoryCarrier, opcode: Opcode, node: u64, body: &[u8]) -> Vec<u8> {
    kernel.ask(request(opcode, 9, node, body));
    let (error, _, answer) = answer(kernel);
    assert_eq!(error, 0, "{opcode:?}");
    answer
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Creates a file that is open for writing; its node.
fn create(kernel: &MemoryCarrier, name: &str, mode: u32) -> u64 {
    const READ_WRITE: u32 = 2;
    let head: Vec<u8> =
        [READ_WRITE, mode, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let entry = must(kernel, Opcode::Create, 1, &[&head[..], name.as_bytes(), b"\0"].concat());
    u64::from_le_bytes(entry[..8].try_into().unwrap())
}

/// Writes to a file, with flags.
fn write(kernel: &MemoryCarrier, node: u64, offset: u64, bytes: &[u8], flags: u64) {
    let head = words(&[0, offset, bytes.len() as u64 | flags << 32, 0, 0]);
    must(kernel, Opcode::Write, node, &[&head, bytes].concat());
}

/// The attributes of a file.
fn stat(kernel: &MemoryCarrier, node: u64) -> Vec<u8> {
    must(kernel, Opcode::Getattr, node, &[0; 16])[16..].to_vec()
}

fn mode_of(stat: &[u8]) -> u32 {
    u32::from_le_bytes(stat[0x3c..0x40].try_into().unwrap())
}

fn in_memory() -> FileSystem<MemFs<NullDisk>> {
    FileSystem::new(MemFs::new(NullDisk::new(1000, 1 << 20), Limits::default()))
}

#[test]
#[should_panic(expected = "an assertion of a test")]
fn a_failing_assertion_fails_the_test() {
    served(&in_memory(), &ServeOptions::default(), |kernel, _| {
        create(kernel, "file", 0o644);
        panic!("an assertion of a test");
    });
}

/// Each of these would wait for ever otherwise: for an answer, or for threads that wait for requests.
#[test]
fn a_panic_of_the_server_fails_the_test() {
    for threads in [1, 4] {
        let carrier = MemoryCarrier::default();
        let log = |_: &str| panic!("a line for the log");
        let options = ServeOptions { threads, ..ServeOptions::default() };
        let (fs, carrier) = (in_memory(), &carrier);
        let ended = floe_sync::thread::scope(|scope| {
            let server = scope.spawn(|| serve(carrier, &fs, &options, &log, || {}));
            carrier.ask(request(Opcode::Init, 1, 0, &offer()));
            answer(carrier);
            // Malformed, which is logged.
            carrier.ask(request(Opcode::Lookup, 2, 1, b"no end"));
            let waiting = scope.spawn(|| answer(carrier));
            assert!(waiting.join().is_err(), "{threads} threads: there is no answer");
            server.join().map_err(drop).and_then(|served| served.map_err(drop))
        });
        assert!(ended.is_err(), "{threads} threads");
    }
}

#[test]
fn what_the_kernel_keeps_is_agreed_and_asked_for_before_holes_are_told() {
    const SEEK_DATA: u64 = 3;
    served(&in_memory(), &ServeOptions::default(), |kernel, taken| {
        assert_ne!(taken & WRITEBACK_CACHE, 0);
        let file = create(kernel, "file", 0o644);
        // The kernel's own errors are all that a close reports.
        kernel.ask(request(Opcode::Flush, 2, file, &[0; 24]));
        assert_eq!(answer(kernel).0, -Errno::NOSYS.raw_os_error());
        // Its blocks are not known yet, but it is no hole, and the kernel asks again after a second.
        let shown = must(kernel, Opcode::Getattr, file, &[0; 16]);
        let sectors = u64::from_le_bytes(shown[16 + 0x10..16 + 0x18].try_into().unwrap());
        assert_eq!((sectors, &shown[..12]), (8, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]));
        write(kernel, file, 0, b"bytes", 1);
        kernel.ask(request(Opcode::Lseek, 3, file, &words(&[0, 0, SEEK_DATA])));
        let (code, unique, about) = answer(kernel);
        assert_eq!((code, unique), (2, 0), "FUSE_NOTIFY_INVAL_INODE");
        assert_eq!(about, words(&[file, 0, 0]));
        assert_eq!(answer(kernel), (0, 3, words(&[0])));
        must(kernel, Opcode::Release, file, &words(&[0, 2, 0]));
        // Nobody writes any more.
        assert_eq!(must(kernel, Opcode::Lseek, file, &words(&[0, 0, SEEK_DATA])), words(&[0]));
    });
    let through = ServeOptions { writeback: false, ..ServeOptions::default() };
    served(&in_memory(), &through, |kernel, taken| {
        assert_eq!(taken & WRITEBACK_CACHE, 0);
        let file = create(kernel, "file", 0o644);
        must(kernel, Opcode::Flush, file, &[0; 24]);
        write(kernel, file, 0, b"bytes", 0);
        must(kernel, Opcode::Lseek, file, &words(&[0, 0, 4]));
    });
}

/// The kernel keeps the time of a write with `O_DIRECT` although the content comes at once, and tells nothing if the time is the same
/// as before. Other writes past its cache it does not notice.
#[test]
fn times_of_direct_writes_are_those_that_the_kernel_keeps() {
    const READ_WRITE: u64 = 2;
    let direct = u64::from(OFlags::DIRECT.bits());
    let modified = |kernel: &MemoryCarrier, node| {
        kernel.ask(request(Opcode::Getattr, 77, node, &[0; 16]));
        // Messages that nobody asked for come in between.
        let shown = std::iter::repeat_with(|| answer(kernel)).find(|(_, unique, _)| *unique == 77);
        let (_, _, shown) = shown.unwrap();
        [shown[16 + 0x20..16 + 0x28].to_vec(), shown[16 + 0x34..16 + 0x38].to_vec()].concat()
    };
    for (flags, moves) in [(READ_WRITE | direct, false), (READ_WRITE, true)] {
        served(&in_memory(), &ServeOptions::default(), |kernel, _| {
            let file = create(kernel, "file", 0o644);
            let created = modified(kernel, file);
            std::thread::sleep(Duration::from_millis(30));
            let head = words(&[0, 0, 5, 0, flags]);
            must(kernel, Opcode::Write, file, &[&head[..], b"bytes"].concat());
            must(kernel, Opcode::Release, file, &words(&[0, READ_WRITE, 0]));
            assert_eq!(modified(kernel, file) != created, moves, "{flags:#x}");
        });
    }
}

/// The kernel tells nothing where a write falls into the tick of the creation, and may forget the file and ask anew before it says that
/// the writer has gone: the file has the time that programs saw.
#[test]
fn times_of_a_file_that_the_kernel_asks_for_again_are_those_that_it_kept() {
    const CACHED: u64 = 1;
    served(&in_memory(), &ServeOptions::default(), |kernel, _| {
        let file = create(kernel, "file", 0o644);
        let times = |attributes: &[u8]| attributes[0x20..0x3c].to_vec();
        let created = times(&stat(kernel, file));
        std::thread::sleep(Duration::from_millis(30));
        write(kernel, file, 0, b"content", CACHED);
        let entry = must(kernel, Opcode::Lookup, 1, b"file\0");
        assert_eq!(entry[40 + 8..40 + 16], 7_u64.to_le_bytes(), "the content came");
        assert_eq!(times(&entry[40..]), created);
        assert_eq!(times(&stat(kernel, file)), created);
    });
}

#[test]
fn an_empty_file_is_kept_until_somebody_may_write_to_it() {
    served(&in_memory(), &ServeOptions::default(), |kernel, _| {
        let file = create(kernel, "file", 0o644);
        let kept = |kernel: &MemoryCarrier| {
            let shown = must(kernel, Opcode::Getattr, file, &[0; 16]);
            let seconds = u64::from_le_bytes(shown[..8].try_into().unwrap());
            let sectors = u64::from_le_bytes(shown[16 + 0x10..16 + 0x18].try_into().unwrap());
            (seconds > 1, sectors)
        };
        assert_eq!(kept(kernel), (false, 8), "it is open for writing");
        must(kernel, Opcode::Release, file, &words(&[0, 2, 0]));
        assert_eq!(kept(kernel), (true, 0));
        // A reader changes nothing.
        must(kernel, Opcode::Open, file, &[0; 8]);
        assert_eq!(kept(kernel), (true, 0));
        kernel.ask(request(Opcode::Open, 2, file, &words(&[u64::from(OFlags::RDWR.bits())])));
        let (code, unique, about) = answer(kernel);
        assert_eq!((code, unique, about), (2, 0, words(&[file, u64::MAX, 0])), "first of all");
        let (code, unique, _) = answer(kernel);
        assert_eq!((code, unique), (0, 2));
        assert_eq!(kept(kernel), (false, 8));
    });
}

#[test]
fn whoever_writes_on_learns_that_nothing_is_kept() {
    let options =
        ServeOptions { commit_every: Duration::from_millis(1), ..ServeOptions::default() };
    served(&in_memory(), &options, |kernel, _| {
        let file = create(kernel, "file", 0o644);
        // Longer than any file.
        let head = words(&[0, u64::MAX >> 1, 1 | 1 << 32, 0, 0]);
        kernel.ask(request(Opcode::Write, 2, file, &[&head[..], b"x"].concat()));
        // Two threads send these.
        let mut sent = [answer(kernel), answer(kernel)];
        sent.sort_by_key(|sent| sent.1);
        let [told, refused] = sent;
        assert_eq!((refused.0, refused.1), (-Errno::FBIG.raw_os_error(), 2));
        assert_eq!(told, (2, 0, words(&[file, u64::MAX, 0])), "the kernel is to ask");
        must(kernel, Opcode::Getattr, file, &[0; 16]);
        let opened = words(&[1, 0]);
        kernel.ask(request(Opcode::Getattr, 3, file, &opened));
        assert_eq!(answer(kernel).0, -Errno::FBIG.raw_os_error());
        must(kernel, Opcode::Getattr, file, &opened);
    });
}

#[test]
fn files_lose_set_user_id_when_they_are_written_or_given_away() {
    const KILL_SUIDGID: u64 = 1 << 2;
    const GID: u32 = 1 << 2;
    const MTIME: u32 = 1 << 5;
    const CTIME: u32 = 1 << 10;
    served(&in_memory(), &ServeOptions::default(), |kernel, _| {
        let file = create(kernel, "file", 0o6755);
        write(kernel, file, 0, b"1", 0);
        assert_eq!(mode_of(&stat(kernel, file)), 0o106_755);
        write(kernel, file, 0, b"2", KILL_SUIDGID);
        assert_eq!(mode_of(&stat(kernel, file)), 0o100_755);
        let set = |fields: u32, at: usize, value: u64| {
            let mut body = [0; 88];
            body[..4].copy_from_slice(&fields.to_le_bytes());
            body[at..at + 8].copy_from_slice(&value.to_le_bytes());
            body
        };
        let file = create(kernel, "other", 0o6755);
        must(kernel, Opcode::Setattr, file, &set(GID, 0x50, 7));
        assert_eq!(mode_of(&stat(kernel, file)), 0o100_755);
        // Without rights for the group, set-group-ID is not what its name says.
        let file = create(kernel, "third", 0o6705);
        must(kernel, Opcode::Setattr, file, &set(GID, 0x50, 7));
        assert_eq!(mode_of(&stat(kernel, file)), 0o102_705);
        // Times are the kernel's.
        must(kernel, Opcode::Setattr, file, &set(MTIME | CTIME, 0x30, 1_000_000_000));
        let ctime = u64::from_le_bytes(stat(kernel, file)[0x28..0x30].try_into().unwrap());
        assert_eq!(ctime, 1_000_000_000);
    });
}

#[test]
fn bytes_are_copied_from_file_to_file() {
    served(&in_memory(), &ServeOptions::default(), |kernel, _| {
        let (from, to) = (create(kernel, "from", 0o644), create(kernel, "to", 0o644));
        let bytes: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
        for (at, piece) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
            write(kernel, from, at, piece, 0);
        }
        let ask = |from_byte: u64, len: u64| words(&[0, from_byte, to, 0, 10, len, 0]);
        let copied = must(kernel, Opcode::CopyFileRange64, from, &ask(5, 1 << 30));
        assert_eq!(copied, words(&[2_999_995]), "up to the end of the file");
        let read = must(kernel, Opcode::Read, to, &range(10 + 2_000_000, 1 << 20));
        assert!(read == bytes[2_000_005..], "the last part");
        assert_eq!(must(kernel, Opcode::CopyFileRange, from, &ask(1 << 40, 1)), words(&[0]));
    });
}

#[test]
fn times_of_access_follow_the_mount() {
    const ATIME: usize = 0x18;
    const CTIME: usize = 0x28;
    let time = |stat: &[u8], at: usize| {
        let word = |at: usize| u32::from_le_bytes(stat[at..at + 4].try_into().unwrap());
        // Seconds, and nanoseconds behind the three seconds.
        (word(at), word(0x30 + (at - ATIME) / 2))
    };
    for (times, first, second) in [
        (AccessTimes::Never, false, false),
        (AccessTimes::Relative, true, false),
        (AccessTimes::Always, true, true),
    ] {
        let options = ServeOptions { access_times: (times, false), ..ServeOptions::default() };
        served(&in_memory(), &options, |kernel, _| {
            let file = create(kernel, "file", 0o644);
            write(kernel, file, 0, b"bytes", 0);
            let mut before = stat(kernel, file);
            for changes in [first, second] {
                std::thread::sleep(Duration::from_millis(20));
                must(kernel, Opcode::Read, file, &range(0, 4096));
                let after = stat(kernel, file);
                assert_eq!(time(&after, ATIME) != time(&before, ATIME), changes, "{times:?}");
                assert_eq!(time(&after, CTIME), time(&before, CTIME), "{times:?}");
                before = after;
            }
            // Not of directories, as the second option says.
            let root = stat(kernel, 1);
            must(kernel, Opcode::Readdir, 1, &range(0, 4096));
            assert_eq!(stat(kernel, 1), root, "{times:?}");
        });
    }
}

/// Arguments of a read: a handle, an offset, a size, and what does not matter.
fn range(offset: u64, size: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_le_bytes(), &size.to_le_bytes(), &[0; 20]].concat()
}

#[test]
fn a_file_is_found_and_read() {
    if tool::missing() {
        return;
    }
    with_server(Profile::Ext4, |kernel| {
        kernel.ask(request(Opcode::Lookup, 2, 1, b"file\0"));
        let (error, _, entry) = answer(kernel);
        assert_eq!((error, entry.len()), (0, 128));
        let node = u64::from_le_bytes(entry[..8].try_into().unwrap());
        kernel.ask(request(Opcode::Read, 3, node, &range(1498, 4096)));
        let (error, unique, bytes) = answer(kernel);
        assert_eq!((error, unique, bytes.len()), (0, 3, 2), "the end of 1500 bytes");
        kernel.ask(request(Opcode::Lookup, 4, 1, b"no such name\0"));
        let (error, _, entry) = answer(kernel);
        assert_eq!((error, &entry[..8]), (0, &[0; 8][..]), "an absence, which the kernel keeps");
    });
}

#[test]
fn changes_and_nonsense_are_refused_and_the_server_goes_on() {
    if tool::missing() {
        return;
    }
    let error = |errno: Errno| -errno.raw_os_error();
    with_server(Profile::Ext4, |kernel| {
        kernel.ask(request(Opcode::Mkdir, 2, 1, b"\0\0\0\0\0\0\0\0new\0"));
        assert_eq!(answer(kernel).0, error(Errno::ROFS));
        kernel.ask(request(Opcode::Lookup, 3, 1, b"no end"));
        assert_eq!(answer(kernel).0, error(Errno::INVAL));
        kernel.ask(request(Opcode::Getattr, 4, u64::MAX, &[0; 16]));
        assert_eq!(answer(kernel).0, error(Errno::STALE));
        // Nobody to answer.
        kernel.ask(vec![1, 2, 3]);
        let mut unknown = request(Opcode::Getattr, 5, 1, &[0; 16]);
        unknown[4] = 200;
        kernel.ask(unknown);
        assert_eq!(answer(kernel).0, error(Errno::NOSYS));
        kernel.ask(request(Opcode::Getattr, 6, 1, &[0; 16]));
        assert_eq!(answer(kernel).0, 0);
    });
}

#[test]
fn a_directory_is_read_on_from_every_cookie() {
    if tool::missing() {
        return;
    }
    with_server(Profile::Ext4, |kernel| {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            // Room for one or two names.
            kernel.ask(request(Opcode::Readdir, 2, 1, &range(cookie, 64)));
            let (error, _, mut bytes) = answer(kernel);
            assert_eq!(error, 0);
            if bytes.is_empty() {
                break;
            }
            while !bytes.is_empty() {
                cookie = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                let len = u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
                names.push(bytes[24..24 + len].to_vec());
                bytes.drain(..(24 + len).next_multiple_of(8));
            }
        }
        assert_eq!(names[..2], [b".".to_vec(), b"..".to_vec()]);
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&b"lost+found".to_vec()));
    });
}

/// A file system in memory that stops twice after it has set a certain time of modification: then, and until it may go on.
struct Stops {
    inner: MemFs<NullDisk>,
    at_seconds: i64,
    stop: Barrier,
}

impl Store for Stops {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.inner.attributes(inode)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        self.inner.directory(inode)
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        self.inner.read(inode, offset_bytes, into)
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.inner.seek(inode, offset_bytes, what)
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.inner.target(inode)
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        self.inner.extended_attributes(inode)
    }

    fn space(&self) -> Space {
        self.inner.space()
    }

    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn takes_many(&self) -> bool {
        self.inner.takes_many()
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let applied = self.inner.apply(op);
        if let OpKind::Change { change, .. } = &op.kind
            && change.modified.is_some_and(|time| time.seconds == self.at_seconds)
        {
            self.stop.wait();
            self.stop.wait();
        }
        applied
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        self.inner.release(inode)
    }

    fn sync(&self) -> Result<(), FsError> {
        self.inner.sync()
    }
}

/// A program closes a file and sets its time. The kernel does not wait for the answer to the first, which another thread gets.
#[test]
fn a_time_that_is_set_while_the_last_writer_goes_stays() {
    const CACHED: u64 = 1;
    const READ_WRITE: u64 = 2;
    const MTIME_AND_CTIME: u64 = 1 << 5 | 1 << 10;
    let seconds = 1_000_000_000;
    let inner = MemFs::new(NullDisk::new(1000, 1 << 20), Limits::default());
    let fs = FileSystem::new(Stops { inner, at_seconds: seconds, stop: Barrier::new(2) });
    served(&fs, &ServeOptions::default(), |kernel, taken| {
        assert_ne!(taken & WRITEBACK_CACHE, 0);
        let file = create(kernel, "file", 0o644);
        write(kernel, file, 0, b"content", CACHED);
        let time = seconds.cast_unsigned();
        let asked = words(&[MTIME_AND_CTIME, 0, 0, 0, 0, time, time + 1, 0, 0, 0, 0]);
        kernel.ask(request(Opcode::Setattr, 77, file, &asked));
        fs.store().stop.wait();
        must(kernel, Opcode::Release, file, &words(&[0, READ_WRITE, 0]));
        fs.store().stop.wait();
        let (error, unique, _) = answer(kernel);
        assert_eq!((error, unique), (0, 77));
        let modified = fs.attributes(InodeNr(u32::try_from(file).unwrap())).unwrap().mtime;
        assert_eq!(modified.seconds, seconds, "the time of the content came back");
    });
}
