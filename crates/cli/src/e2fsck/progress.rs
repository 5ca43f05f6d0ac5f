//! `-C`: how far a run is, for programs such as systemd-fsck and installers.
//!
//! Each line is "pass now all name". Readers turn it into percent by a table of e2fsck's: the five
//! passes end at 70, 90, 92, 95 and 100 percent. Where a run is by its own account, over all of its
//! phases, is put into the pass and the numbers that give that percentage: so what such programs show
//! is honest, although their table is not, and it never goes back when a repair looks again.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;

use anyhow::{Context, bail};
use floe_sync::Arc;
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use signal_hook::consts::{SIGUSR1, SIGUSR2};

/// Where each pass begins and ends, as shares of a run.
const PASSES: [(f64, f64); 5] =
    [(0.0, 0.70), (0.70, 0.90), (0.90, 0.92), (0.92, 0.95), (0.95, 1.0)];
/// What a pass counts to.
const ALL: u32 = 1000;

/// Whether progress is shown now: SIGUSR1 and SIGUSR2 switch it.
#[derive(Clone, Debug)]
pub(crate) struct Switch(Arc<AtomicUsize>);

impl Switch {
    /// Shown from the start or not, and switched by signals from here on, which would end the
    /// program otherwise.
    pub(crate) fn new(on: bool) -> anyhow::Result<Self> {
        let shown = Arc::new(AtomicUsize::new(usize::from(on)));
        for (signal, value) in [(SIGUSR1, 1), (SIGUSR2, 0)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&shown), value)
                .context("cannot arrange for signals")?;
        }
        Ok(Self(shown))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// How it is said.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// A line for each change.
    Lines,
    /// A bar on a terminal. The flag says that one stands there now; whoever writes there takes it
    /// away first.
    Bar(Arc<AtomicBool>),
}

/// Takes a bar away: back to the first column, and everything behind it is erased.
pub(crate) const ERASE: &[u8] = b"\r\x1b[K";
/// Characters of the bar.
const BAR_WIDTH: u32 = 40;

/// A file descriptor that gets lines, or a terminal that gets a bar.
#[derive(Debug)]
pub(crate) struct Lines<W> {
    form: Form,
    /// `None` once nobody reads any more.
    out: Option<W>,
    name: String,
    switch: Switch,
    last: Option<(usize, u32)>,
}

impl<W: Write> Lines<W> {
    pub(crate) fn new(form: Form, out: W, name: &str, switch: Switch) -> Self {
        // A line has four fields: what a label may hold must not make more lines of it.
        let name = name.replace(|char: char| char.is_control() || char == ' ', "_");
        Self { form, out: Some(out), name, switch, last: None }
    }

    /// The run is as far as `share`, from 0 to 1. Nothing is written if it was that far before.
    pub(crate) fn tell(&mut self, share: f64) {
        let at = place(share);
        if !self.switch.is_on() || self.last >= Some(at) {
            return;
        }
        self.last = Some(at);
        // One write, so that a reader of a pipe gets whole lines.
        let text = match &self.form {
            Form::Lines => format!("{} {} {ALL} {}\n", at.0, at.1, self.name),
            // What follows the end is the report.
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

/// The pass and the number in it that mean a share of the run.
fn place(share: f64) -> (usize, u32) {
    let share = share.clamp(0.0, 1.0);
    let index = PASSES.iter().position(|&(_, end)| share < end).unwrap_or(PASSES.len() - 1);
    let (start, end) = PASSES[index];
    // From 0 to ALL.
    (index + 1, ((share - start) / (end - start) * f64::from(ALL)) as u32)
}

/// A file of our own for a descriptor that we were started with.
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
        // Old kernels, and sandboxes that do not allow it; a socket cannot be opened this way.
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

    /// Percent, as readers of the lines compute them.
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
