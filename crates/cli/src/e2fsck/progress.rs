//! `-C`: progress for programs such as systemd-fsck and installers.
//!
//! Each line is "pass now all name". Readers convert it to a percentage by e2fsck's table: the five
//! passes end at 70, 90, 92, 95 and 100 percent. Floe's own share of the whole run is encoded as
//! the pass and numbers that give this percentage. The displayed value is therefore correct
//! although the table is not, and never decreases when a repair examines again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;

use anyhow::{Context, bail};
use floe_sync::Arc;
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use signal_hook::consts::{SIGUSR1, SIGUSR2};

/// Start and end of each pass, as shares of a run.
const PASSES: [(f64, f64); 5] =
    [(0.0, 0.70), (0.70, 0.90), (0.90, 0.92), (0.92, 0.95), (0.95, 1.0)];
/// The total of each pass.
const ALL: u32 = 1000;

/// Whether progress is currently shown: SIGUSR1 and SIGUSR2 switch it.
#[derive(Clone, Debug)]
pub(crate) struct Switch(Arc<AtomicUsize>);

impl Switch {
    /// Sets the initial state, and handles the switching signals, which would otherwise end the
    /// program.
    pub(crate) fn new(on: bool) -> anyhow::Result<Self> {
        let shown = Arc::new(AtomicUsize::new(usize::from(on)));
        for (signal, value) in [(SIGUSR1, 1), (SIGUSR2, 0)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&shown), value)
                .context("cannot install signal handlers")?;
        }
        Ok(Self(shown))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Form of the output.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// A line per change.
    Lines,
    /// A bar on a terminal. The flag tells that it is displayed; other output must erase it first.
    Bar(Arc<AtomicBool>),
}

/// Erases a bar: returns to the first column and clears the line.
pub(crate) const ERASE: &[u8] = b"\r\x1b[K";
/// Width of the bar in characters.
const BAR_WIDTH: u32 = 40;

/// A file descriptor that receives lines, or a terminal with a bar.
#[derive(Debug)]
pub(crate) struct Lines<W> {
    form: Form,
    /// `None` once the reader has closed it.
    out: Option<W>,
    name: String,
    switch: Switch,
    last: Option<(usize, u32)>,
}

impl<W: Write> Lines<W> {
    pub(crate) fn new(form: Form, out: W, name: &str, switch: Switch) -> Self {
        // A line has four fields, so control characters and spaces in a label are replaced.
        let name = name.replace(|char: char| char.is_control() || char == ' ', "_");
        Self { form, out: Some(out), name, switch, last: None }
    }

    /// Reports the share of the run that is done, from 0 to 1. Writes nothing if it did not grow.
    pub(crate) fn tell(&mut self, share: f64) {
        let at = place(share);
        if !self.switch.is_on() || self.last >= Some(at) {
            return;
        }
        self.last = Some(at);
        // A single write, so that the reader of a pipe gets whole lines.
        let text = match &self.form {
            Form::Lines => format!("{} {} {ALL} {}\n", at.0, at.1, self.name),
            // The report follows the end.
            Form::Bar(_) if share >= 1.0 => return,
            Form::Bar(drawn) => {
                drawn.store(true, Ordering::Relaxed);
                bar(&self.name, share)
            }
        };
        if let Some(out) = &mut self.out
            && out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err()
        {
            self.out = None;
        }
    }
}

fn bar(name: &str, share: f64) -> String {
    // From 0 to 1.
    let share = share.clamp(0.0, 1.0);
    let full = (share * f64::from(BAR_WIDTH)) as usize;
    let (full, empty) = ("=".repeat(full), " ".repeat(BAR_WIDTH as usize - full));
    format!("\r{name}: |{full}{empty}| {:4.1}%\x1b[K", share * 100.0)
}

/// The pass and the number in it that encode a share of the run.
fn place(share: f64) -> (usize, u32) {
    let share = share.clamp(0.0, 1.0);
    let index = PASSES.iter().position(|&(_, end)| share < end).unwrap_or(PASSES.len() - 1);
    let (start, end) = PASSES[index];
    // From 0 to ALL.
    (index + 1, ((share - start) / (end - start) * f64::from(ALL)) as u32)
}

/// Duplicates an inherited file descriptor.
///
/// # Errors
/// It is not open.
pub(crate) fn open(fd: RawFd) -> anyhow::Result<File> {
    let place = format!("/proc/self/fd/{fd}");
    if std::fs::symlink_metadata(&place).is_err() && std::fs::metadata("/proc/self").is_ok() {
        bail!("-C {fd}: there is no such file descriptor");
    }
    let copied = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|us| pidfd_getfd(us, fd, PidfdGetfdFlags::empty()));
    match copied {
        Ok(copied) => Ok(File::from(copied)),
        // For old kernels and restrictive sandboxes; does not work for sockets.
        Err(_) => File::options()
            .append(true)
            .open(&place)
            .or_else(|_: io::Error| File::options().write(true).open(&place))
            .with_context(|| format!("-C {fd}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentage, as computed by readers of the lines.
    fn percent(pass: usize, now: u32) -> f64 {
        let table = [0.0, 70.0, 90.0, 92.0, 95.0, 100.0];
        table[pass - 1] + (table[pass] - table[pass - 1]) * f64::from(now) / f64::from(ALL)
    }

    #[test]
    fn readers_compute_the_share() {
        for per_mille in 0..=1000 {
            let share = f64::from(per_mille) / 1000.0;
            let (pass, now) = place(share);
            assert!((1..=5).contains(&pass) && now <= ALL, "{share}");
            assert!((percent(pass, now) - share * 100.0).abs() < 0.1, "{share}: {pass} {now}");
        }
        assert_eq!(place(1.0), (5, ALL));
        assert_eq!(place(f64::NAN), (5, 0), "no number makes it panic");
    }

    #[test]
    fn lines_are_written_when_something_changed_and_somebody_looks() {
        let switch = Switch::new(false).unwrap();
        let mut lines = Lines::new(Form::Lines, Vec::new(), "my disk\n", switch.clone());
        lines.tell(0.35);
        assert_eq!(lines.out.as_deref(), Some(&b""[..]));
        switch.0.store(1, Ordering::Relaxed);
        lines.tell(0.35);
        lines.tell(0.35);
        lines.tell(0.2);
        lines.tell(1.0);
        let text = String::from_utf8(lines.out.unwrap()).unwrap();
        assert_eq!(text, "1 500 1000 my_disk_\n5 1000 1000 my_disk_\n");
    }

    #[test]
    fn a_bar_is_drawn_and_erased_before_the_report() {
        let drawn = Arc::new(AtomicBool::new(false));
        let form = Form::Bar(Arc::clone(&drawn));
        let mut lines = Lines::new(form, Vec::new(), "x", Switch::new(true).unwrap());
        lines.tell(0.5);
        lines.tell(1.0);
        assert!(drawn.load(Ordering::Relaxed));
        let text = String::from_utf8(lines.out.unwrap()).unwrap();
        let half = "=".repeat(20);
        assert_eq!(text, format!("\rx: |{half}{:20}| 50.0%\x1b[K", ""));
    }

    #[test]
    fn a_reader_that_left_is_no_reason_to_end() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut lines = Lines::new(Form::Lines, Gone, "x", Switch::new(true).unwrap());
        lines.tell(0.5);
        assert!(lines.out.is_none());
        lines.tell(0.6);
    }
}
