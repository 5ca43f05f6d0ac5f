//! The dispatcher: takes requests from a carrier, on several threads, and answers them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use floe_format::InodeNr;
use floe_fs::{FileSystem, FsError, Store};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Condvar, Mutex, PoisonError, Turn, Turns, thread};
use rustix::io::Errno;

use crate::abi::{InHeader, InitFlags, InitIn, InitOut, MAJOR, MINOR, OLDEST_MINOR, Operation};
use crate::abi::{OutHeader, Request, ask_again, forget, stale_name, write_back};
use crate::adapter::{Adapter, Answer};
use crate::carrier::{Carrier, Channel, MOST_DATA_BYTES};
use crate::metrics::Metrics;
use crate::options::ServeOptions;
use crate::scarce::KeptLimit;
use crate::times::Times;
use crate::writers::{Outdated, Writers, WritingBack};

/// Requests that nobody waits for, at most; the kernel's own default of 12 slows reading ahead.
const MOST_BACKGROUND: u16 = 64;

/// Features that the server takes from the kernel's offer. Not taken: those that need a server of another kind
/// (passthrough, splice, DAX, submounts), locks, which the kernel keeps by itself, and, unless asked for, id-mapped mounts
/// (`FUSE_ALLOW_IDMAP`), because requests that create nothing then come without a user id, which the reserved
/// blocks, trimming and the list of `trusted` attributes depend on.
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
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
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
    let (metrics, mut writers) = (Metrics::default(), Writers::default());
    // While one thread waits for the kernel to write back, another one must take that.
    let writeback = options.writeback && !began_read_only && options.threads > 1;
    let mut wanted = TAKEN | carrier.wants(options.threads);
    wanted.set(InitFlags::WRITEBACK_CACHE, writeback);
    wanted.set(InitFlags::ALLOW_IDMAP, options.mapped_ids);
    wanted.set(InitFlags::POSIX_ACL, options.judged);
    let Some(taken) = negotiate(&mut *carrier.control(), wanted, fs.time_steps_ns())? else {
        return Ok(());
    };
    let writeback = taken.contains(InitFlags::WRITEBACK_CACHE);
    if options.mapped_ids && !taken.contains(InitFlags::ALLOW_IDMAP) {
        log("ids cannot be mapped: that takes Linux 6.12");
    }
    writers.unknown = options.open_fast;
    let (metrics, writers) = (&metrics, &writers);
    let (writing_back, times) = (WritingBack::default(), Times::default());
    let adapter = Adapter {
        fs,
        options,
        log,
        began_read_only,
        metrics,
        writers,
        times: &times,
        writeback,
        carrier,
        writing_back: &writing_back,
    };
    let turns = Arc::new(Turns::default());
    let (over, server_turns) = (AtomicBool::new(false), Arc::clone(&turns));
    let server = Server { adapter, log, agreed: taken, over, turns: server_turns };
    ready();
    let over = Over::default();
    let served = thread::scope(|scope| {
        // Also if this thread panics, because the scope waits for all others.
        let _telling = Telling(&over);
        let mut channels = carrier.channels(taken, options.threads.max(1)).into_iter();
        let own = channels.next();
        let channels_share = own.as_ref().is_some_and(|own| own.is_pending().is_some());
        let server = &server;
        let others: Vec<_> =
            channels.map(|mut channel| scope.spawn(move || server.run(&mut *channel))).collect();
        if channels_share {
            let over = &over;
            scope.spawn(move || {
                while !over.wait(TEND_EVERY) {
                    turns.watch();
                }
            });
        }
        if !fs.is_read_only() {
            let over = &over;
            scope.spawn(move || {
                let kept = writeback.then(|| (KeptLimit::default(), metrics));
                let tell = || tell_kernel(carrier, fs, writers, kept.as_ref());
                commit_now_and_then(fs, options.commit_every, over, log, tell);
            });
        }
        let mut result = own.map_or(Ok(()), |mut channel| server.run(&mut *channel));
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        result
    });
    server.adapter.settle_all_times();
    served
}

/// Tells the kernel what it has to ask anew or to forget, and how much it may keep.
fn tell_kernel<C: Carrier, S: Store>(
    carrier: &C,
    fs: &FileSystem<S>,
    writers: &Writers,
    kept: Option<&(KeptLimit, &Metrics)>,
) {
    if let Some((kept, metrics)) = kept
        && let Some(most) = kept.look(metrics.written(), || fs.space())
    {
        carrier.limit_kept(most);
    }
    for inode in writers.take_untold() {
        // One that the kernel does not know has nobody who writes.
        let _ = carrier.notify(&ask_again(inode));
    }
    for inode in writers.take_changed_in_part() {
        let _ = carrier.notify(&write_back(inode));
    }
    for Outdated { inode, is_first } in writers.take_outdated() {
        if is_first {
            // Those who read it see what there is, as far as the kernel knows its size.
            let _ = carrier.notify(&write_back(inode));
        }
        // Linux older than 6.18 shows the rest that it kept until it forgets the file by itself.
        let _ = carrier.notify(&forget(inode));
    }
    for (directory, name) in fs.take_stale() {
        // The kernel answers that it does not know the name, which is as good.
        let _ = carrier.notify(&stale_name(directory, &name));
    }
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

/// Tells that serving is over when it is dropped.
struct Telling<'o>(&'o Over);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// Makes changes durable at intervals, until serving is over, and does `also` in between.
fn commit_now_and_then<S: Store>(
    fs: &FileSystem<S>,
    interval: Duration,
    over: &Over,
    log: &(dyn Fn(&str) + Sync),
    also: impl Fn(),
) {
    let (mut since, mut last) = (Duration::ZERO, String::new());
    while !over.wait(interval.min(TEND_EVERY)) {
        also();
        fs.take_news().iter().for_each(|line| log(line));
        since += interval.min(TEND_EVERY);
        let work = AssertUnwindSafe(|| if since < interval { fs.tend() } else { fs.sync() });
        let done = catch_unwind(work).unwrap_or_else(|_| {
            Err(FsError::Panicked { what: "work that waits was given up".to_owned() })
        });
        if since >= interval {
            since = Duration::ZERO;
        }
        let Err(error) = done else { continue };
        let text = error.to_string();
        if text != last {
            log(&text);
        }
        last = text;
        let goes_on = matches!(
            error,
            FsError::Lost { .. } | FsError::Panicked { .. } | FsError::CubeFailed { .. }
        );
        if !goes_on {
            // Every change says so from now on.
            return;
        }
    }
}

struct Server<'s, S> {
    adapter: Adapter<'s, S>,
    log: &'s (dyn Fn(&str) + Sync),
    /// Agreed on with the kernel.
    agreed: InitFlags,
    /// The kernel sent its last request.
    over: AtomicBool,
    /// Few of the threads that share a queue of requests are woken.
    turns: Arc<Turns>,
}

/// Lets threads that rest find out that all is over, when one has.
struct Ending<'t>(&'t Turns);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<S: Store> Server<'_, S> {
    /// Answers requests until the file system is unmounted.
    fn run(&self, channel: &mut dyn Channel) -> io::Result<()> {
        let shares = channel.is_pending().is_some();
        let _ending = shares.then(|| Ending(&self.turns));
        let mut turn = shares.then(|| Turn::new(&self.turns));
        let mut buffer = Vec::new();
        loop {
            if let Some(turn) = &mut turn {
                turn.take(|| channel.is_pending() != Some(false));
            }
            let Some(message) = channel.receive()? else { break };
            if let Some(turn) = &turn {
                turn.taken();
            }
            let answer = match Request::decode(message, self.agreed) {
                Ok(Request { header, operation }) => {
                    if self.adapter.options.debug {
                        (self.log)(&format!("{header:?} {operation:?}"));
                    }
                    // A call that panics is answered, too: its caller would wait for ever.
                    let handled =
                        AssertUnwindSafe(|| self.handle(&header, &operation, &mut buffer));
                    let answer = catch_unwind(handled).unwrap_or_else(|_| {
                        (self.log)("a fault of Floe itself ended a request");
                        let is_awaited =
                            !matches!(operation, Operation::Forget(_) | Operation::Interrupt);
                        is_awaited.then_some(Answer::Error(Errno::IO))
                    });
                    answer.map(|answer| (header.unique, answer))
                }
                Err(malformed) => {
                    (self.log)(&malformed.to_string());
                    malformed.unique().map(|unique| (unique, Answer::Error(Errno::INVAL)))
                }
            };
            if let Some((unique, answer)) = answer {
                send(channel, unique, &answer, &buffer)?;
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// The answer to a request; `None` if nobody waits for one.
    fn handle(
        &self,
        header: &InHeader,
        operation: &Operation<'_>,
        buffer: &mut Vec<u8>,
    ) -> Option<Answer> {
        self.adapter.metrics.add_request(header.opcode);
        match operation {
            Operation::Interrupt => return None,
            // The adapter logs what goes wrong; nobody waits for an answer.
            Operation::Forget(_) => {
                self.adapter.answer(InodeNr::ROOT, header, operation, buffer);
                return None;
            }
            // Only block devices get this request; everywhere else the connection just ends.
            Operation::Destroy => self.over.store(true, Ordering::Relaxed),
            _ => {}
        }
        Some(match crate::abi::inode_of(header.node) {
            Some(inode) => self.adapter.answer(inode, header, operation, buffer),
            // Requests about the whole file system carry no inode.
            None if header.node == 0 => {
                self.adapter.answer(InodeNr::ROOT, header, operation, buffer)
            }
            None => Answer::Error(Errno::STALE),
        })
    }
}

/// Answers requests until the kernel has offered what this server takes; `None` if it went away. Returns what was agreed.
fn negotiate(
    channel: &mut dyn Channel,
    wanted: InitFlags,
    time_gran: u32,
) -> io::Result<Option<InitFlags>> {
    while let Some(message) = channel.receive()? {
        let decoded = Request::decode(message, InitFlags::empty());
        let Ok(Request { header, operation: Operation::Init(offer) }) = decoded else {
            let unique = match decoded {
                Ok(request) => Some(request.header.unique),
                Err(malformed) => malformed.unique(),
            };
            if let Some(unique) = unique {
                send(channel, unique, &Answer::Error(Errno::IO), &[])?;
            }
            continue;
        };
        if offer.major < MAJOR || offer.major == MAJOR && offer.minor < OLDEST_MINOR {
            send(channel, header.unique, &Answer::Error(Errno::PROTO), &[])?;
            let found = format!("{}.{}", offer.major, offer.minor);
            let text = format!("the kernel's FUSE protocol {found} is older than 7.31 (Linux 5.4)");
            return Err(io::Error::other(text));
        }
        let taken = taken(&offer, wanted);
        let answer = accept(&offer, taken, time_gran).to_vec();
        send(channel, header.unique, &Answer::Bytes(answer), &[])?;
        // A kernel with another major version asks again with ours.
        if offer.major == MAJOR {
            return Ok(Some(taken));
        }
    }
    Ok(None)
}

fn send(channel: &mut dyn Channel, unique: u64, answer: &Answer, buffer: &[u8]) -> io::Result<()> {
    let (error, body) = match answer {
        Answer::Bytes(bytes) => (0, bytes.as_slice()),
        Answer::Buffer(len) => (0, buffer.get(..*len).unwrap_or_default()),
        Answer::Error(errno) => (errno.raw_os_error().wrapping_neg(), &[][..]),
    };
    // At most a megabyte and a header.
    let len = (OutHeader::SIZE + body.len()) as u32;
    let mut head = [0; OutHeader::SIZE];
    OutHeader { len, error: error.cast_unsigned(), unique }.encode_into(&mut head);
    channel.send(&head, body)
}

/// Selects from the kernel's offer.
fn taken(offer: &InitIn, wanted: InitFlags) -> InitFlags {
    let low = u64::from(offer.flags);
    let extended = low & InitFlags::INIT_EXT.bits() != 0;
    let high = if extended { u64::from(offer.flags2) << 32 } else { 0 };
    InitFlags::from_bits_retain(low | high) & wanted
}

/// The answer to the kernel's offer.
fn accept(offer: &InitIn, taken: InitFlags, time_gran: u32) -> [u8; InitOut::SIZE] {
    let mut bytes = [0; InitOut::SIZE];
    InitOut {
        major: MAJOR,
        minor: MINOR.min(offer.minor),
        max_readahead: offer.max_readahead,
        flags: (taken.bits() & 0xffff_ffff) as u32,
        max_background: MOST_BACKGROUND,
        congestion_threshold: MOST_BACKGROUND / 4 * 3,
        max_write: MOST_DATA_BYTES,
        // The kernel makes up times of what it writes back later, in steps that inodes can tell.
        time_gran,
        max_pages: (MOST_DATA_BYTES >> 12) as u16,
        flags2: (taken.bits() >> 32) as u32,
    }
    .encode_into(&mut bytes);
    bytes
}
