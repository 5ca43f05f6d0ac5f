//! What carries messages between the kernel, or a test, and the dispatcher.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};
use rustix::io::Errno;

/// What carries messages. Shared by the threads that serve.
pub trait Carrier: Send + Sync {
    /// Waits for a request and stores it in `into`; returns its length, or `None` once the file system is
    /// unmounted.
    ///
    /// # Errors
    /// The connection is broken.
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends an answer in two parts, at once. Nothing is sent to a caller that was interrupted.
    ///
    /// # Errors
    /// The kernel refuses the answer.
    fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()>;
}

/// The kernel, by a descriptor of `/dev/fuse`. All threads share the descriptor: the system call that would
/// give each its own is not to be had without `unsafe`.
#[derive(Debug)]
pub struct DevFuse(File);

impl DevFuse {
    /// The connection of a mounted file system.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(File::from(descriptor))
    }
}

impl Carrier for DevFuse {
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *into) {
                Ok(len) => return Ok(Some(len)),
                // The request was interrupted before anybody read it.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let parts = [io::IoSlice::new(head), io::IoSlice::new(body)];
        match rustix::io::writev(&self.0, &parts) {
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
    fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut queues = self.queues();
        loop {
            if let Some(request) = queues.requests.pop_front() {
                let place = into.get_mut(..request.len()).ok_or(Errno::INVAL)?;
                place.copy_from_slice(&request);
                return Ok(Some(request.len()));
            }
            if queues.unmounted {
                return Ok(None);
            }
            queues = self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.queues().answers.push_back([head, body].concat());
        self.changed.notify_all();
        Ok(())
    }
}
