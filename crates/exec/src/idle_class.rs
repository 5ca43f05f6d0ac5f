//! The idle scheduling class, which leaves the processor to all other programs.

use std::io;

use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};
use thread_priority::{Error, ThreadPriority};

/// Puts the calling thread, and all threads and processes that it starts from now on, into the
/// scheduling class `SCHED_IDLE`: it runs when a core would be idle, and any other program preempts
/// it. Entering needs no privilege, leaving does, so call this only where the whole program should
/// yield. The nice value, which has no effect in this class, may become 0.
///
/// # Errors
/// The system's error, if it refused; nothing has changed then.
pub fn enter_idle_class() -> io::Result<()> {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
    match (set, thread_schedule_policy()) {
        // Setting the nice value may fail after the class was entered, because raising priority
        // needs privilege.
        (_, Ok(policy)) if policy == idle => Ok(()),
        (Err(Error::OS(code)), _) | (_, Err(Error::OS(code))) => {
            Err(io::Error::from_raw_os_error(code))
        }
        _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

/// Tests on a separate thread whether the system lets threads enter the idle class; the caller
/// keeps its class.
///
/// # Errors
/// Those of [`enter_idle_class`].
pub fn try_idle_class() -> io::Result<()> {
    let tried = floe_sync::thread::Builder::new().spawn(enter_idle_class)?.join();
    tried.unwrap_or_else(|_| Err(io::Error::other("the test thread panicked")))
}

/// The scheduling policy of the calling thread: 0 normal, 5 idle.
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) fn policy_of_this_thread() -> Option<u32> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(38)?.parse().ok()
}

/// Whether the system does not allow the idle class.
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) fn is_refused() -> bool {
    try_idle_class().is_err()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::policy_of_this_thread as policy;
    use super::*;
    use floe_sync::thread;

    #[test]
    fn threads_inherit_the_class_and_others_keep_theirs() {
        let before = policy();
        let entered = thread::spawn(|| {
            enter_idle_class()?;
            let child = thread::spawn(policy).join().expect("the thread does not panic");
            Ok::<_, io::Error>((policy(), child))
        });
        match entered.join().unwrap() {
            Ok(classes) => assert_eq!(classes, (Some(5), Some(5))),
            Err(error) => eprintln!("skipped: the system refuses: {error}"),
        }
        assert_eq!(policy(), before);
    }
}
