//! Carriers of messages between the kernel, or a test, and the dispatcher.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError, thread};

use crate::abi::InitFlags;

/// Bytes of a write or read at most.
pub(crate) const MOST_DATA_BYTES: u32 = 1 << 20;
/// Bytes of the largest request: data, and a page for what stands before them.
pub(crate) const REQUEST_BYTES: usize = MOST_DATA_BYTES as usize + 4096;

/// Carries messages between the kernel and the threads that serve.
pub trait Carrier: Send + Sync {
    /// The features that the carrier requests from the kernel for `threads` concurrent threads.
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

    /// Lets the kernel keep at most so many bytes that programs write, if the server may say so; `None`: as many as without it.
    fn limit_kept(&self, _bytes: Option<u64>) {}

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

    /// Whether there is a request already, or the connection has ended; `None` for a channel whose requests no other one gets.
    fn is_pending(&self) -> Option<bool> {
        None
    }

    /// Sends the answer to the last request, in two parts. Nothing is sent to a caller that was interrupted.
    ///
    /// # Errors
    /// The kernel refuses the answer.
    fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()>;
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
    /// A thread of the server panicked: who waits for its answer would wait for ever.
    broken: bool,
}

/// Time after which a request counts as never answered.
const PATIENCE: Duration = Duration::from_secs(60);

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
    ///
    /// # Panics
    /// A thread of the server has panicked, or no answer comes for a minute: a test fails rather than waits for ever.
    pub fn answer(&self) -> Vec<u8> {
        let (mut queues, begin) = (self.queues(), Instant::now());
        loop {
            if let Some(answer) = queues.answers.pop_front() {
                return answer;
            }
            assert!(!queues.broken, "a thread of the server panicked");
            let left = PATIENCE.saturating_sub(begin.elapsed());
            assert!(!left.is_zero(), "no answer for {PATIENCE:?}");
            let waited = self.changed.wait_timeout(queues, left);
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
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
            if queues.unmounted || queues.broken {
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

impl Drop for MemoryChannel<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.carrier.queues().broken = true;
            self.carrier.changed.notify_all();
        }
    }
}
