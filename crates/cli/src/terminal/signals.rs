//! Ctrl-C, SIGTERM and SIGHUP: they end the program with the exit code for cancellation; work that
//! must not be interrupted is finished first.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use floe_exec::Interrupt;
use floe_exec::interrupt::Answer;
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Mutex, PoisonError, thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::exit::Outcome;
use crate::message::message;
use crate::terminal::document;

/// Whether a report is being written to standard output.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// Marks the start of the report on standard output.
pub(crate) fn reporting() {
    REPORTING.store(true, Ordering::Relaxed);
}

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The exit code of a cancelled run.
pub(crate) const CANCELLED: u8 = Outcome { cancelled: true, ..Outcome::CLEAN }.code();

/// Hands signals to a thread that handles them. Without a thread they do what they do to any program, which ends it; returns whether
/// there is one.
fn handle(
    wanted: impl IntoIterator<Item = i32>,
    handle: impl FnOnce(Signals) + Send + 'static,
) -> anyhow::Result<bool> {
    let given = Arc::new(Mutex::new(None::<Option<Signals>>));
    let taken = Arc::clone(&given);
    // Runs until the program ends, or ends if there are no signals to handle. It is started first, because a signal that was
    // arranged for never does again as before.
    let work = move || {
        loop {
            // The lock is held no longer than this.
            let signals = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            match signals {
                Some(Some(signals)) => return handle(signals),
                Some(None) => return,
                None => thread::park(),
            }
        }
    };
    let Ok(handler) = thread::Builder::new().spawn(work) else { return Ok(false) };
    let signals = Signals::new(wanted);
    let (signals, result) = match signals {
        Ok(signals) => (Some(signals), Ok(true)),
        Err(error) => (None, Err(error)),
    };
    *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(signals);
    handler.thread().unpark();
    result.context("cannot arrange for signals")
}

/// Calls `act` at each SIGUSR1, which would otherwise end the program.
pub(crate) fn on_user_signal(mut act: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    handle([SIGUSR1], move |mut signals| signals.forever().for_each(|_| act())).map(drop)
}

/// For read-only work: a signal ends the program at once, with a message on the consequences for
/// `work`.
pub(crate) fn end_at_once(work: &'static str) -> anyhow::Result<()> {
    end_at_once_with(CANCELLED, work)
}

/// The same, with another exit code.
pub(crate) fn end_at_once_with(code: u8, work: &'static str) -> anyhow::Result<()> {
    handle(wanted(), move |mut signals| {
        if signals.forever().next().is_some() {
            end(code, &format!("interrupted; {work}"));
        }
    })
    .map(drop)
}

/// Ends the program with a message, and a JSON document if requested.
fn end(code: u8, text: &str) -> ! {
    // A second document after the start of a report would be useless.
    if !REPORTING.load(Ordering::Relaxed)
        && let Some(document) = document::of_signal(text, code)
        // Not through `io::stdout`, which the main thread has locked.
        && let Ok(out) = rustix::io::dup(std::io::stdout())
    {
        // Standard error may be closed.
        let _ = writeln!(File::from(out), "{document}");
    }
    // A progress bar may be displayed on the line.
    let before = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    message!("{before}floe: {text}");
    std::process::exit(i32::from(code))
}

/// For writes: a signal ends the program at once, unless the returned interrupt is held; it is then
/// only recorded.
pub(crate) fn end_between_writes() -> anyhow::Result<Arc<Interrupt>> {
    end_between_writes_with(CANCELLED)
}

/// The same, with another exit code.
pub(crate) fn end_between_writes_with(code: u8) -> anyhow::Result<Arc<Interrupt>> {
    let interrupt = Arc::new(Interrupt::new());
    let asked = Arc::clone(&interrupt);
    let is_handled = handle(wanted(), move |mut signals| {
        for _ in signals.forever() {
            match asked.ask() {
                Answer::EndNow => end(code, "interrupted; nothing was written"),
                Answer::Later => {
                    message!("floe: the device is being written; finishing that first");
                }
            }
        }
    })?;
    if is_handled { Ok(interrupt) } else { by_flags(&wanted(), code) }
}

/// The same where no thread can be started: nothing is told, but writes are not cut off.
fn by_flags(signals: &[i32], code: u8) -> anyhow::Result<Arc<Interrupt>> {
    let (interrupt, flags) = Interrupt::by_flags();
    for &signal in signals {
        // In this order: a program that goes on knows of the signal.
        flag::register_conditional_shutdown(signal, code.into(), Arc::clone(&flags.may_end))
            .and_then(|_| flag::register(signal, Arc::clone(&flags.asked)))
            .context("cannot arrange for signals")?;
    }
    Ok(Arc::new(interrupt))
}

/// For a check with a checkpoint in the file `path`: a signal ends the current leg, whose record is
/// then written; a second signal, or one outside of a leg, ends the program at once.
pub(crate) fn end_between_legs(path: &Path, asked: Arc<Interrupt>) -> anyhow::Result<()> {
    let path = path.to_owned();
    handle(wanted(), move |mut signals| {
        let mut before = false;
        for _ in signals.forever() {
            let path = path.display();
            match asked.ask() {
                Answer::Later if !before => {
                    message!("floe: stopping as soon as {path} is written; repeat to stop at once");
                }
                _ => {
                    let text =
                        format!("interrupted; to resume from {path}, give the same command again");
                    end(CANCELLED, &text);
                }
            }
            before = true;
        }
    })
    .map(drop)
}

/// Runs `then` on a signal, in a thread of its own, which ends the program with [`cancelled`].
pub(crate) fn on_signal(then: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    handle(wanted(), move |mut signals| {
        if signals.forever().next().is_some() {
            then();
        }
    })
    .map(drop)
}

/// Runs `then` on every signal, in a thread of its own, with the number of earlier signals.
pub(crate) fn on_each_signal(mut then: impl FnMut(usize) + Send + 'static) -> anyhow::Result<()> {
    handle(wanted(), move |mut signals| {
        for (before, _) in signals.forever().enumerate() {
            then(before);
        }
    })
    .map(drop)
}

/// Ends the program with the exit code for cancellation.
pub(crate) fn cancelled() -> ! {
    std::process::exit(i32::from(CANCELLED))
}

/// Lets writes beyond the limit of a file's size (`ulimit -f`) fail, instead of ending the program without a word. Tests of a build for
/// debugging can have it end at a chosen byte.
pub(crate) fn outlive_size_limit() {
    if cfg!(debug_assertions) && std::env::var_os("FLOE_END_AT_SIZE_LIMIT").is_some() {
        return;
    }
    // Without it the program is as others are.
    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// For work that must end by itself: ignores signals.
pub(crate) fn ignore() -> anyhow::Result<()> {
    let seen = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        flag::register(signal, Arc::clone(&seen)).context("cannot arrange for signals")?;
    }
    Ok(())
}

/// The signals to handle: not those ignored at the start (`nohup`, `command &`).
fn wanted() -> Vec<i32> {
    let ignored = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| ignored_mask(&status))
        .unwrap_or(0);
    SIGNALS.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// The mask of ignored signals in `/proc/self/status`: bit 0 is signal 1.
fn ignored_mask(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(
            ignored_mask("Name:\tfloe\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"),
            Some(0x1001)
        );
        assert_eq!(ignored_mask("Name:\tfloe\n"), None);
        assert_eq!(CANCELLED, 32);
    }

    #[test]
    fn writes_are_not_cut_off_where_no_thread_can_be_started() {
        // Other tests of this process handle those that end it.
        let signal = signal_hook::consts::SIGUSR2;
        let interrupt = by_flags(&[signal], CANCELLED).unwrap();
        let hold = interrupt.hold().unwrap();
        // It would end this process.
        signal_hook::low_level::raise(signal).unwrap();
        assert!(interrupt.asked());
        assert!(interrupt.hold().is_err());
        drop(hold);
    }
}
