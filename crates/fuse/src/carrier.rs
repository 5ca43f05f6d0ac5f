//! What carries messages between the kernel, or a test, and the dispatcher.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
#[cfg(feature = "io-uring")]
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};
use rustix::io::Errno;

use crate::abi::InitFlags;

/// Bytes of a write or read at most.
pub(crate) const MOST_DATA_BYTES: u32 = 1 << 20;
/// Bytes of the largest request: data, and a page for what stands before them.
pub(crate) const REQUEST_BYTES: usize = MOST_DATA_BYTES as usize + 4096;

/// What carries messages between the kernel and the threads that serve.
pub trait Carrier: Send + Sync {
    /// What the carrier asks of the kernel, if `threads` are to answer at a time.
    fn wants(&self, _threads: usize) -> InitFlags {
        InitFlags::empty()
    }

    /// The channel for the first request, by which kernel and server agree on `FUSE_INIT`.
    fn control(&self) -> Box<dyn Channel + '_>;

    /// The channels for all others, once `taken` was agreed: each is served by a thread of its own. `threads` is how many
    /// are to answer at a time.
    fn channels(&self, taken: InitFlags, threads: usize) -> Vec<Box<dyn Channel + '_>>;

    /// Sends a message to the kernel that no request asked for.
    ///
    /// # Errors
    /// The kernel refuses it.
    fn notify(&self, message: &[u8]) -> io::Result<()>;

    /// How messages are carried, in a few words.
    fn transport(&self) -> String;
}

/// A way by which requests come to one thread, and answers go.
pub trait Channel: Send {
    /// Waits for a request; `None` once the file system is unmounted.
    ///
    /// # Errors
    /// The connection is broken.
    fn receive(&mut self) -> io::Result<Option<&[u8]>>;

    /// Sends the answer to the last request, in two parts. Nothing is sent to a caller that was interrupted.
    ///
    /// # Errors
    /// The kernel refuses the answer.
    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()>;
}

/// Which carrier a mount uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where the kernel has it, else `/dev/fuse`.
    #[default]
    Auto,
    /// io_uring; `/dev/fuse` only where the kernel refuses it.
    Ring,
    /// `/dev/fuse`.
    Device,
}

/// The kernel, by a descriptor of `/dev/fuse`.
#[derive(Debug)]
pub struct DevFuse {
    device: File,
    transport: Transport,
    descriptors: AtomicUsize,
    #[cfg(feature = "io-uring")]
    rings: Mutex<crate::ring::Rings>,
    #[cfg(feature = "io-uring")]
    served: crate::ring::Served,
}

impl DevFuse {
    /// The connection of a mounted file system.
    pub fn new(descriptor: OwnedFd, transport: Transport) -> Self {
        Self {
            device: File::from(descriptor),
            transport,
            descriptors: AtomicUsize::new(1),
            #[cfg(feature = "io-uring")]
            rings: Mutex::default(),
            #[cfg(feature = "io-uring")]
            served: crate::ring::Served::default(),
        }
    }

    /// Prepares for requests by io_uring.
    #[cfg(feature = "io-uring")]
    fn prepare_rings(&self, threads: usize) -> io::Result<()> {
        let unwanted = match self.transport {
            Transport::Auto => !ring_is_mature(),
            Transport::Ring => false,
            Transport::Device => true,
        };
        if unwanted {
            return Err(Errno::OPNOTSUPP.into());
        }
        let rings = crate::ring::prepare(threads)?;
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) = rings;
        Ok(())
    }

    /// No requests by io_uring.
    #[cfg(not(feature = "io-uring"))]
    fn prepare_rings(&self, _: usize) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    /// A descriptor of its own for a thread; the shared one where the kernel gives none.
    fn channel(&self) -> DeviceChannel<'_> {
        #[cfg(feature = "io-uring")]
        let own = crate::ring::clone_device(&self.device).ok();
        #[cfg(not(feature = "io-uring"))]
        let own = None;
        if own.is_some() {
            self.descriptors.fetch_add(1, Ordering::Relaxed);
        }
        DeviceChannel { shared: &self.device, own, buffer: vec![0; REQUEST_BYTES] }
    }
}

impl Carrier for DevFuse {
    fn wants(&self, threads: usize) -> InitFlags {
        match self.prepare_rings(threads) {
            Ok(()) => InitFlags::OVER_IO_URING,
            Err(_) => InitFlags::empty(),
        }
    }

    fn control(&self) -> Box<dyn Channel + '_> {
        Box::new(DeviceChannel { shared: &self.device, own: None, buffer: vec![0; REQUEST_BYTES] })
    }

    fn channels(&self, taken: InitFlags, threads: usize) -> Vec<Box<dyn Channel + '_>> {
        let mut channels: Vec<Box<dyn Channel + '_>> = Vec::new();
        // With io_uring, they get what does not come over it, and all if the kernel refuses it.
        channels.extend((0..threads).map(|_| Box::new(self.channel()) as Box<dyn Channel + '_>));
        #[cfg(feature = "io-uring")]
        if taken.contains(InitFlags::OVER_IO_URING) {
            let rings = mem::take(&mut *self.rings.lock().unwrap_or_else(PoisonError::into_inner));
            channels.extend(crate::ring::channels(&self.device, rings, &self.served));
        }
        #[cfg(not(feature = "io-uring"))]
        let _ = taken;
        channels
    }

    fn notify(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.device, message)?;
        Ok(())
    }

    fn transport(&self) -> String {
        #[cfg(feature = "io-uring")]
        if let Some(rings) = self.served.rings() {
            return format!("io_uring ({rings} rings)");
        }
        format!("/dev/fuse ({} descriptors)", self.descriptors.load(Ordering::Relaxed))
    }
}

/// Whether the kernel's rings are free of known races: Linux 6.18. With older ones they must be asked for.
#[cfg(feature = "io-uring")]
fn ring_is_mature() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 18)
}

/// Requests of a descriptor of `/dev/fuse`.
#[derive(Debug)]
struct DeviceChannel<'c> {
    shared: &'c File,
    own: Option<OwnedFd>,
    buffer: Vec<u8>,
}

impl DeviceChannel<'_> {
    fn device(&self) -> BorrowedFd<'_> {
        self.own.as_ref().map_or(self.shared.as_fd(), AsFd::as_fd)
    }
}

impl Channel for DeviceChannel<'_> {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let device = self.own.as_ref().map_or(self.shared.as_fd(), AsFd::as_fd);
            match rustix::io::read(device, &mut self.buffer[..]) {
                Ok(len) => return Ok(self.buffer.get(..len)),
                // The request was interrupted before anybody read it.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let parts = [io::IoSlice::new(head), io::IoSlice::new(body)];
        match rustix::io::writev(self.device(), &parts) {
            // The caller is gone, or the mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A carrier in memory, for tests: requests are put in, answers are taken out.
#[derive(Debug, Default)]
pub struct MemoryCarrier {
    queues: Mutex<Queues>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queues {
    requests: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
    unmounted: bool,
}

impl MemoryCarrier {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the server.
    pub fn ask(&self, request: Vec<u8>) {
        self.queues().requests.push_back(request);
        self.changed.notify_all();
    }

    /// Waits for an answer.
    pub fn answer(&self) -> Vec<u8> {
        let mut queues = self.queues();
        loop {
            if let Some(answer) = queues.answers.pop_front() {
                return answer;
            }
            queues = self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Unmounts: the server ends.
    pub fn unmount(&self) {
        self.queues().unmounted = true;
        self.changed.notify_all();
    }
}

impl Carrier for MemoryCarrier {
    fn control(&self) -> Box<dyn Channel + '_> {
        Box::new(MemoryChannel { carrier: self, request: Vec::new() })
    }

    fn channels(&self, _: InitFlags, threads: usize) -> Vec<Box<dyn Channel + '_>> {
        (0..threads).map(|_| self.control()).collect()
    }

    fn notify(&self, message: &[u8]) -> io::Result<()> {
        self.queues().answers.push_back(message.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn transport(&self) -> String {
        "memory".to_owned()
    }
}

/// Requests from memory, for one thread.
#[derive(Debug)]
struct MemoryChannel<'c> {
    carrier: &'c MemoryCarrier,
    request: Vec<u8>,
}

impl Channel for MemoryChannel<'_> {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let mut queues = self.carrier.queues();
        loop {
            if let Some(request) = queues.requests.pop_front() {
                self.request = request;
                return Ok(Some(&self.request));
            }
            if queues.unmounted {
                return Ok(None);
            }
            queues = self.carrier.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.carrier.queues().answers.push_back([head, body].concat());
        self.carrier.changed.notify_all();
        Ok(())
    }
}
