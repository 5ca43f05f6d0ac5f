//! FUSE over io_uring (Linux 6.14): the kernel writes a request into our memory and wakes us; one system call hands it the
//! answer and waits for the next request.
//!
//! Each core of the machine has a queue in the kernel. Each thread here has a ring of its own with one place for a request
//! of one queue, so that a thread that waits, for the disk or for the kernel, keeps nobody but its caller waiting: the
//! queue's other threads have places, too. Where the kernel refuses a ring, it goes on by `/dev/fuse`.
//!
//! With [`floe_blockdev`'s reads](../floe_blockdev/index.html), the one place with `unsafe` code: the kernel writes to
//! memory after a system call has returned, and one system call has no safe wrapper.

#![allow(unsafe_code)] // see above

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{fmt, fs, io, mem};

use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::abi::{InHeader, OutHeader};
use crate::carrier::{Channel, MOST_DATA_BYTES};

/// Where the kernel says whether it offers rings; root sets it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Numbers of all cores that the machine may have, as `0-7`.
const CORES: &str = "/sys/devices/system/cpu/possible";
/// Threads for each queue: one works, one waits for the next request, one more may wait for a disk or the kernel.
const THREADS_PER_QUEUE: usize = 3;

/// `struct fuse_uring_req_header`: `fuse_in_header` or `fuse_out_header`, what stands before the data of an operation, and
/// `struct fuse_uring_ent_in_out`: flags, the number to answer to, bytes of data.
const HEADER_BYTES: usize = 288;
const OPERATION_AT: usize = 128;
const COMMIT_ID_AT: usize = 264;
const PAYLOAD_BYTES_AT: usize = 272;
/// Commands (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Memory areas of a place: the header and the data.
const AREAS: usize = 2;
/// Where a submission has its length (`struct io_uring_sqe`).
const LENGTH_AT: usize = 24;
/// `FUSE_DEV_IOC_CLONE`.
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

/// A further descriptor of a connection, with a queue of its own for requests that are being answered.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn clone_device(device: &File) -> io::Result<OwnedFd> {
    clone_number(device.as_raw_fd().cast_unsigned())
}

/// The same, for the connection of the descriptor with this number.
///
/// # Errors
/// The kernel refuses it: it has no connection.
pub(crate) fn clone_number(of: u32) -> io::Result<OwnedFd> {
    let clone = File::options().read(true).write(true).open("/dev/fuse")?;
    // SAFETY: this request reads a number of 32 bits from where the argument points, and nothing else
    // (`fuse_dev_ioctl_clone`); `Setter` keeps it until the call returns.
    unsafe {
        let clone_of = rustix::ioctl::Setter::<CLONE, u32>::new(of);
        rustix::ioctl::ioctl(&clone, clone_of)?;
    }
    Ok(clone.into())
}

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

fn uring() -> io::Result<Uring> {
    IoUring::builder().build(2)
}

/// A ring for each thread of each queue, made before the kernel is told: it serves nobody until all queues have one.
///
/// # Errors
/// The kernel does not offer them, or does not let this process have so many.
pub(crate) fn prepare(threads: usize) -> io::Result<Rings> {
    if !fs::read_to_string(SWITCH)?.starts_with('Y') {
        return Err(io::Error::other(format!("{SWITCH} is off")));
    }
    let list = fs::read_to_string(CORES)?;
    let queues = queues_of(&list).ok_or_else(|| io::Error::other("the cores are not known"))?;
    let each = THREADS_PER_QUEUE.min(threads.max(1));
    let ring = |at| Ok((u16::try_from(at / each).map_err(io::Error::other)?, uring()?));
    (0..queues * each).map(ring).collect::<io::Result<_>>().map(Rings)
}

/// One more than the largest number of a core in a list such as `0-3,8`.
fn queues_of(list: &str) -> Option<usize> {
    let last = list.trim().rsplit([',', '-']).next()?;
    last.parse::<usize>().ok()?.checked_add(1)
}

/// Channels of a connection that agreed on rings.
pub(crate) fn channels<'c>(
    device: &'c File,
    rings: Rings,
    served: &'c Served,
) -> impl Iterator<Item = Box<dyn Channel + 'c>> {
    rings.0.into_iter().map(move |(queue, uring)| {
        Box::new(RingChannel::new(device, queue, uring, served)) as Box<dyn Channel + 'c>
    })
}

/// Rings, each with the number of its queue.
#[derive(Default)]
pub(crate) struct Rings(Vec<(u16, Uring)>);

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("count", &self.0.len()).finish()
    }
}

/// How the kernel answered the request for rings.
#[derive(Debug, Default)]
pub(crate) struct Served {
    rings: AtomicUsize,
    refused: AtomicBool,
}

impl Served {
    /// How many rings serve; `None` if none does.
    pub(crate) fn rings(&self) -> Option<usize> {
        let refused = self.refused.load(Ordering::Relaxed);
        Some(self.rings.load(Ordering::Relaxed)).filter(|rings| *rings > 0 && !refused)
    }
}

/// Bytes before the payload, where what comes before it in a request of `/dev/fuse` is put.
const HEADROOM: usize = 4096;

/// Memory that the kernel may write to as long as a command for it is under way.
struct Place {
    header: Box<[u8; HEADER_BYTES]>,
    /// Behind [`HEADROOM`] bytes, which the kernel does not know.
    payload: Vec<u8>,
    /// Tells the kernel where both are, once.
    areas: Box<[libc_iovec; AREAS]>,
}

/// `struct iovec`.
#[repr(C)]
#[allow(non_camel_case_types)] // the kernel's name
struct libc_iovec {
    base: *mut u8,
    len: usize,
}

// SAFETY: the pointers lead to the header and the payload that the same `Place` owns.
unsafe impl Send for Place {}

/// How far a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The kernel does not know it yet.
    New,
    /// A command is under way: the place is the kernel's.
    Waiting,
    /// A request is in the place, which is ours.
    Working,
    /// The kernel has ended it, or refused it.
    Ended,
}

/// One place for requests of one queue, and a ring for it.
struct RingChannel<'c> {
    device: &'c File,
    queue: u16,
    uring: Uring,
    /// `None` once it is the kernel's for good.
    place: Option<Place>,
    state: State,
    /// Where the request lies in the payload, as `/dev/fuse` would have it.
    message: Range<usize>,
    commit_id: u64,
    served: &'c Served,
}

impl Place {
    fn new() -> Self {
        let (mut header, mut payload) =
            (Box::new([0; HEADER_BYTES]), vec![0; HEADROOM + MOST_DATA_BYTES as usize]);
        let known = &mut payload[HEADROOM..];
        let areas = Box::new([
            libc_iovec { base: header.as_mut_ptr(), len: HEADER_BYTES },
            libc_iovec { base: known.as_mut_ptr(), len: known.len() },
        ]);
        Self { header, payload, areas }
    }
}

impl<'c> RingChannel<'c> {
    fn new(device: &'c File, queue: u16, uring: Uring, served: &'c Served) -> Self {
        Self {
            device,
            queue,
            uring,
            place: Some(Place::new()),
            state: State::New,
            message: 0..0,
            commit_id: 0,
            served,
        }
    }

    /// Gives the place to the kernel: with a first request for work, or with an answer.
    fn give(&mut self, command: u32) -> io::Result<()> {
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&self.commit_id.to_le_bytes());
        arguments[16..18].copy_from_slice(&self.queue.to_le_bytes());
        let Some(place) = &self.place else { return Err(Errno::NOTCONN.into()) };
        let fd = types::Fd(self.device.as_raw_fd());
        let mut command_of = opcode::UringCmd80::new(fd, command).cmd(arguments);
        if command == REGISTER {
            command_of = command_of.addr(Some(place.areas.as_ptr() as u64));
        }
        let mut entry = command_of.build();
        // SAFETY: `Entry128` is `#[repr(C)]` and begins with `struct io_uring_sqe`, which has 32 bits for a length at this
        // offset in all kernels; the builder of this command has no setter for it.
        unsafe {
            let length = (&raw mut entry).cast::<u8>().add(LENGTH_AT).cast::<u32>();
            length.write_unaligned(if command == REGISTER { AREAS as u32 } else { 0 });
        }
        // SAFETY: the kernel writes to `header` and `payload`, of the lengths in `areas`, until it completes this command.
        // They lie on the heap and belong to `self.place`, which nothing reads or writes while the state is `Waiting`:
        // `receive` looks at them only after the completion, and `drop` leaks them if the command is still under way.
        // `areas` is read when the command is submitted, and lives as long. The descriptor outlives `self`.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            // One command at a time, and there is room for two.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.state = State::Waiting;
        Ok(())
    }

    /// Registers the place with the kernel, from the thread that serves it: the kernel completes commands in the thread that
    /// submitted them.
    fn begin(&mut self) -> io::Result<()> {
        // A request is answered best by the core whose program waits for it. It is only faster so.
        let mut cores = CpuSet::new();
        cores.set(usize::from(self.queue));
        let _ = sched_setaffinity(None, &cores);
        self.give(REGISTER)
    }

    /// Waits until the command under way is completed.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let Some(entry) = self.uring.completion().next() else { continue };
            if entry.result() < 0 {
                self.state = State::Ended;
                return Err(io::Error::from_raw_os_error(-entry.result()));
            }
            self.state = State::Working;
            return Ok(());
        }
    }

    /// Puts the request together as `/dev/fuse` has it: header, arguments, data. The data, which may be a megabyte, stay where
    /// they are.
    fn assemble(&mut self) -> Option<()> {
        let place = self.place.as_mut()?;
        let number = |at: usize| place.header.get(at..at + 8)?.first_chunk().copied();
        self.commit_id = u64::from_le_bytes(number(COMMIT_ID_AT)?);
        let payload_bytes = u64::from_le_bytes(number(PAYLOAD_BYTES_AT)?) as u32 as usize;
        let (head, _) = place.header.split_first_chunk::<{ InHeader::SIZE }>()?;
        let len = InHeader::decode(head).len as usize;
        let arguments = len.checked_sub(InHeader::SIZE)?.checked_sub(payload_bytes)?;
        let arguments = place.header.get(OPERATION_AT..)?.get(..arguments.min(128))?;
        let from = HEADROOM - head.len() - arguments.len();
        self.message = from..HEADROOM.checked_add(payload_bytes)?;
        place.payload.get(self.message.clone())?;
        let (before, behind) = place.payload[from..HEADROOM].split_at_mut(head.len());
        before.copy_from_slice(head);
        behind.copy_from_slice(arguments);
        Some(())
    }
}

impl Channel for RingChannel<'_> {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        match self.state {
            State::New => {
                self.begin()?;
                self.served.rings.fetch_add(1, Ordering::Relaxed);
            }
            // Nobody waits for an answer to that request.
            State::Working => self.send(&refusal(self.commit_id), &[])?,
            State::Waiting => {}
            State::Ended => return Ok(None),
        }
        if let Err(error) = self.wait() {
            self.served.rings.fetch_sub(1, Ordering::Relaxed);
            if Errno::from_io_error(&error) != Some(Errno::NOTCONN) {
                // All goes by /dev/fuse now.
                self.served.refused.store(true, Ordering::Relaxed);
            }
            return if self.state == State::Ended { Ok(None) } else { Err(error) };
        }
        let assembled = self.assemble();
        let message = self.place.as_ref().and_then(|place| place.payload.get(self.message.clone()));
        match assembled.and(message) {
            Some(message) => Ok(Some(message)),
            None => Err(io::Error::other("the kernel's ring has a request that is none")),
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        if self.state != State::Working {
            return Ok(());
        }
        if let Some(place) = &mut self.place {
            let answer = place.header.get_mut(..head.len()).ok_or(Errno::INVAL)?;
            answer.copy_from_slice(head);
            let payload = place.payload.get_mut(HEADROOM..HEADROOM + body.len());
            payload.ok_or(Errno::INVAL)?.copy_from_slice(body);
            let len = (body.len() as u64).to_le_bytes();
            place.header[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 8].copy_from_slice(&len);
        }
        self.give(COMMIT_AND_FETCH)
    }
}

/// The answer to a request that the server passes over.
fn refusal(unique: u64) -> [u8; OutHeader::SIZE] {
    let mut head = [0; OutHeader::SIZE];
    let error = Errno::NOSYS.raw_os_error().wrapping_neg().cast_unsigned();
    OutHeader { len: OutHeader::SIZE as u32, error, unique }.encode_into(&mut head);
    head
}

impl Drop for RingChannel<'_> {
    fn drop(&mut self) {
        if self.state == State::Waiting {
            // The kernel may write to this memory for as long as the process lives.
            mem::forget(self.place.take());
        }
    }
}

impl fmt::Debug for RingChannel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state;
        f.debug_struct("RingChannel").field("queue", &self.queue).field("state", &state).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cores_gives_the_number_of_queues() {
        assert_eq!(queues_of("0-7\n"), Some(8));
        assert_eq!(queues_of("0\n"), Some(1));
        assert_eq!(queues_of("0-3,8"), Some(9));
        assert_eq!(queues_of("none"), None);
    }
}
