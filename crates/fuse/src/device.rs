//! The kernel as a carrier: descriptors of `/dev/fuse`, and io_uring where both sides have it.

use std::fs::{self, File, OpenOptions};
use std::io;
#[cfg(feature = "io-uring")]
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use floe_sync::OnceLock;
use floe_sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "io-uring")]
use floe_sync::{Mutex, PoisonError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::abi::InitFlags;
use crate::carrier::{Carrier, Channel, REQUEST_BYTES};

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
    #[cfg_attr(not(feature = "io-uring"), expect(dead_code, reason = "there is but one way"))]
    transport: Transport,
    descriptors: AtomicUsize,
    write_back: OnceLock<WriteBackLimit>,
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
            write_back: OnceLock::new(),
            #[cfg(feature = "io-uring")]
            rings: Mutex::default(),
            #[cfg(feature = "io-uring")]
            served: crate::ring::Served::default(),
        }
    }

    /// A duplicate of the connection's descriptor: the connection does not end as long as anybody has one.
    ///
    /// # Errors
    /// The process may have no more descriptors.
    pub fn duplicate(&self) -> io::Result<File> {
        self.device.try_clone()
    }

    /// The mount's device, by which root limits what the kernel keeps of what programs write ([`Carrier::limit_kept`], from Linux
    /// 6.2 on).
    pub fn know_device(&self, major: u32, minor: u32) {
        if let Some(limit) = WriteBackLimit::of(major, minor) {
            let _ = self.write_back.set(limit);
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

    fn limit_kept(&self, bytes: Option<u64>) {
        if let Some(limit) = self.write_back.get() {
            limit.set(bytes);
        }
    }

    fn transport(&self) -> String {
        #[cfg(feature = "io-uring")]
        if let Some(rings) = self.served.rings() {
            return format!("io_uring ({rings} rings)");
        }
        format!("/dev/fuse ({} descriptors)", self.descriptors.load(Ordering::Relaxed))
    }
}

/// The kernel's limit of what it keeps for one mount: a part of what it keeps for all, if nobody says otherwise.
#[derive(Debug)]
struct WriteBackLimit {
    folder: PathBuf,
    /// The part.
    own: String,
}

impl WriteBackLimit {
    /// `None` if this process may not change it, or the kernel takes no bytes.
    fn of(major: u32, minor: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/class/bdi/{major}:{minor}"));
        OpenOptions::new().write(true).open(folder.join("max_bytes")).ok()?;
        let own = fs::read_to_string(folder.join("max_ratio_fine")).ok()?;
        Some(Self { folder, own })
    }

    /// Without it the kernel keeps more, no more than that.
    fn set(&self, bytes: Option<u64>) {
        let _ = match bytes {
            Some(bytes) => fs::write(self.folder.join("max_bytes"), bytes.to_string()),
            None => fs::write(self.folder.join("max_ratio_fine"), &self.own),
        };
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

    fn is_pending(&self) -> Option<bool> {
        let mut found = [PollFd::from_borrowed_fd(self.device(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Where it cannot be told, the next read tells.
        Some(poll(&mut found, Some(&at_once)) != Ok(0))
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
