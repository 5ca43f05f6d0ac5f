//! The dispatcher: takes requests from a carrier, on several threads, and answers them.

use std::io;
use std::time::Duration;

use floe_format::InodeNr;
use floe_fs::{FileSystem, FsError, Store};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Condvar, Mutex, PoisonError, thread};
use rustix::io::Errno;

use crate::abi::{InHeader, InitFlags, InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, Operation};
use crate::abi::{OutHeader, Request};
use crate::adapter::{Adapter, Answer};
use crate::carrier::Carrier;
use crate::metrics::Metrics;
use crate::options::ServeOptions;

/// Bytes of a write or read at most.
const MOST_DATA_BYTES: u32 = 1 << 20;
/// Bytes of the largest request: data, and a page for what stands before them.
const REQUEST_BYTES: usize = MOST_DATA_BYTES as usize + 4096;
/// Requests that nobody waits for, at most; the kernel's own default of 12 slows reading ahead.
const MOST_BACKGROUND: u16 = 64;

/// What the server takes of what the kernel offers. Not taken: what needs a server of another kind
/// (passthrough, splice, DAX, submounts), locks, which the kernel keeps by itself, and id-mapped mounts
/// (`FUSE_ALLOW_IDMAP`), because requests that create nothing then come without a user id, which the reserved
/// blocks and the list of `trusted` attributes depend on.
const TAKEN: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::INIT_EXT);

/// Serves until the file system is unmounted. `log` gets a line for every request that fails because the image is
/// damaged or cannot be read, with `ready` called once the kernel has been answered for the first time.
///
/// # Errors
/// The carrier fails, or the kernel's protocol is too old.
pub fn serve<C: Carrier, S: Store>(
    carrier: &C,
    fs: &FileSystem<S>,
    options: &ServeOptions,
    log: &(dyn Fn(&str) + Sync),
    ready: impl FnOnce(),
) -> io::Result<()> {
    let began_read_only = fs.is_read_only();
    let metrics = Metrics::default();
    let adapter = Adapter { fs, options, log, began_read_only, metrics: &metrics };
    let server = Server { carrier, adapter, log, over: AtomicBool::new(false) };
    if !server.negotiate()? {
        return Ok(());
    }
    ready();
    let over = Over::default();
    thread::scope(|scope| {
        let others: Vec<_> =
            (1..options.threads.max(1)).map(|_| scope.spawn(|| server.run())).collect();
        if !fs.is_read_only() {
            scope.spawn(|| server.commit_now_and_then(options.commit_every, &over));
        }
        let mut result = server.run();
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        over.tell();
        result
    })
}

/// Time after which the file system may do what waits without being durable yet.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// Tells that serving is over.
#[derive(Default)]
struct Over {
    is_over: Mutex<bool>,
    told: Condvar,
}

impl Over {
    fn tell(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Waits; `true` if it is over.
    fn wait(&self, most: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_over {
            return true;
        }
        *self.told.wait_timeout(is_over, most).unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Server<'s, C, S> {
    carrier: &'s C,
    adapter: Adapter<'s, S>,
    log: &'s (dyn Fn(&str) + Sync),
    /// The kernel sent its last request.
    over: AtomicBool,
}

impl<C: Carrier, S: Store> Server<'_, C, S> {
    /// Answers requests until the kernel has offered what this server takes; `false` if it went away.
    fn negotiate(&self) -> io::Result<bool> {
        let mut buffer = vec![0; REQUEST_BYTES];
        while let Some(len) = self.carrier.receive(&mut buffer)? {
            let message = buffer.get(..len).unwrap_or_default();
            let Ok(Request { header, operation: Operation::Init(offer) }) =
                Request::decode(message)
            else {
                self.refuse(message, Errno::IO)?;
                continue;
            };
            if offer.major < MAJOR || offer.major == MAJOR && offer.minor < OLDEST_MINOR {
                self.send(header.unique, &Answer::Error(Errno::PROTO))?;
                let found = format!("{}.{}", offer.major, offer.minor);
                let text =
                    format!("the kernel's FUSE protocol {found} is older than 7.31 (Linux 5.4)");
                return Err(io::Error::other(text));
            }
            let answer = accept(&offer);
            self.send(header.unique, &Answer::Bytes(answer.to_vec()))?;
            // A kernel with another major version asks again with ours.
            if offer.major == MAJOR {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes changes durable at intervals, and does what waits, until serving is over.
    fn commit_now_and_then(&self, interval: Duration, over: &Over) {
        let fs = self.adapter.fs;
        let mut since = Duration::ZERO;
        while !over.wait(interval.min(TEND_EVERY)) {
            since += interval.min(TEND_EVERY);
            let done = fs.tend();
            self.tell_stale();
            let done = if since < interval { done } else { done.and_then(|()| fs.sync()) };
            if since >= interval {
                since = Duration::ZERO;
            }
            let Err(error) = done else { continue };
            (self.log)(&error.to_string());
            if !matches!(error, FsError::Lost { .. }) {
                // Every change says so from now on.
                return;
            }
        }
    }

    /// Lets the kernel forget names that lead to something else now. Not by a thread that answers a request: the kernel may hold
    /// locks until it has the answer.
    fn tell_stale(&self) {
        for (directory, name) in self.adapter.fs.take_stale() {
            let body = crate::abi::stale_name(directory, &name);
            // At most a name and two headers.
            let len = (OutHeader::SIZE + body.len()) as u32;
            let mut head = [0; OutHeader::SIZE];
            OutHeader { len, error: crate::abi::NOTIFY_STALE_NAME, unique: 0 }
                .encode_into(&mut head);
            // The kernel answers that it does not know the name, which is as good.
            let _ = self.carrier.send(&head, &body);
        }
    }

    /// Answers requests until the file system is unmounted.
    fn run(&self) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES];
        while let Some(len) = self.carrier.receive(&mut buffer)? {
            let message = buffer.get(..len).unwrap_or_default();
            match Request::decode(message) {
                Ok(Request { header, operation }) => {
                    if self.adapter.options.debug {
                        (self.log)(&format!("{header:?} {operation:?}"));
                    }
                    self.handle(&header, &operation)?;
                }
                Err(malformed) => {
                    (self.log)(&malformed.to_string());
                    self.refuse(message, Errno::INVAL)?;
                }
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    fn handle(&self, header: &InHeader, operation: &Operation<'_>) -> io::Result<()> {
        self.adapter.metrics.add_request(header.opcode);
        match operation {
            Operation::Interrupt => return Ok(()),
            // The adapter logs what goes wrong; nobody waits for an answer.
            Operation::Forget(_) => {
                self.adapter.answer(InodeNr::ROOT, header, operation);
                return Ok(());
            }
            // Only block devices get this request; everywhere else the connection just ends.
            Operation::Destroy => self.over.store(true, Ordering::Relaxed),
            _ => {}
        }
        let answer = match crate::abi::inode_of(header.node) {
            Some(inode) => self.adapter.answer(inode, header, operation),
            // Requests about the whole file system carry no inode.
            None if header.node == 0 => self.adapter.answer(InodeNr::ROOT, header, operation),
            None => Answer::Error(Errno::STALE),
        };
        self.send(header.unique, &answer)
    }

    /// Answers a message that is no request, or comes at the wrong time, if it says whom to answer.
    fn refuse(&self, message: &[u8], errno: Errno) -> io::Result<()> {
        let unique = match Request::decode(message) {
            Ok(request) => Some(request.header.unique),
            Err(malformed) => malformed.unique(),
        };
        unique.map_or(Ok(()), |unique| self.send(unique, &Answer::Error(errno)))
    }

    fn send(&self, unique: u64, answer: &Answer) -> io::Result<()> {
        let (error, body) = match answer {
            Answer::Bytes(bytes) => (0, bytes.as_slice()),
            Answer::Error(errno) => (errno.raw_os_error().wrapping_neg(), &[][..]),
        };
        // At most a megabyte and a header.
        let len = (OutHeader::SIZE + body.len()) as u32;
        let mut head = [0; OutHeader::SIZE];
        OutHeader { len, error: error.cast_unsigned(), unique }.encode_into(&mut head);
        self.carrier.send(&head, body)
    }
}

/// The answer to the kernel's offer.
fn accept(offer: &InitIn) -> [u8; InitOut::SIZE] {
    let low = u64::from(offer.flags);
    let extended = low & InitFlags::INIT_EXT.bits() != 0;
    let high = if extended { u64::from(offer.flags2) << 32 } else { 0 };
    let taken = InitFlags::from_bits_retain(low | high) & TAKEN;
    let mut bytes = [0; InitOut::SIZE];
    InitOut {
        major: MAJOR,
        minor: MINOR.min(offer.minor),
        max_readahead: offer.max_readahead,
        flags: (taken.bits() & 0xffff_ffff) as u32,
        max_background: MOST_BACKGROUND,
        congestion_threshold: MOST_BACKGROUND / 4 * 3,
        max_write: MOST_DATA_BYTES,
        time_gran: 1,
        max_pages: (MOST_DATA_BYTES >> 12) as u16,
        flags2: (taken.bits() >> 32) as u32,
    }
    .encode_into(&mut bytes);
    bytes
}
