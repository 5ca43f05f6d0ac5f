//! The records of all guests in each second, as text and as a picture.

use std::fmt;
use std::time::Duration;

use floe_testkit::picture::Picture;

use super::{GUESTS, STRUCK};

/// One second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) at: Duration,
    /// Records that the guests' disks have acknowledged.
    pub(super) records: [u64; GUESTS],
    pub(super) runs: [bool; GUESTS],
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    pub(super) moments: Vec<Moment>,
    pub(super) struck_at: Option<Duration>,
}

/// Sizes of the picture, in its own units.
const LEFT: f64 = 60.0;
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 200.0;
const BOTTOM: f64 = 60.0 + HEIGHT;
const COLOURS: [&str; GUESTS] = ["#1b6ca8", "#c0562c", "#3c8d40"];

impl Timeline {
    /// Records of each guest in one second, from the second moment on.
    fn rates(&self) -> impl Iterator<Item = (&Moment, [u64; GUESTS])> {
        self.moments.windows(2).map(|pair| {
            let rates = std::array::from_fn(|at| pair[1].records[at] - pair[0].records[at]);
            (&pair[1], rates)
        })
    }

    /// The longest time from the damage on in which a guest finished no record.
    pub(super) fn silence(&self, guest: usize) -> Duration {
        let Some(struck_at) = self.struck_at else { return Duration::ZERO };
        let (mut longest, mut since) = (Duration::ZERO, struck_at);
        for (moment, rates) in self.rates().filter(|(moment, _)| moment.at > struck_at) {
            if rates[guest] > 0 {
                since = moment.at;
            } else {
                longest = longest.max(moment.at - since);
            }
        }
        longest
    }

    /// A picture: the rates of the guests, the damage and the new start as lines.
    pub(super) fn svg(&self) -> String {
        let end = self.moments.last().map_or(1.0, |moment| moment.at.as_secs_f64());
        let x = |at: Duration| LEFT + at.as_secs_f64() / end * WIDTH;
        let most = self.rates().flat_map(|(_, rates)| rates).max().unwrap_or(1).max(1) as f64;
        let mut picture = Picture::new(LEFT + WIDTH + 30.0, BOTTOM + 40.0);
        let title =
            format!("records a second that the disk of each guest made durable (top: {most:.0})");
        picture.text(LEFT, 25.0, "black", &title);
        for (guest, colour) in COLOURS.iter().enumerate() {
            let points = self.rates().map(|(moment, rates)| {
                (x(moment.at), BOTTOM - rates[guest] as f64 / most * HEIGHT)
            });
            picture.polyline(points, colour);
            let left = LEFT + 480.0 + 100.0 * guest as f64;
            picture.text(left, 25.0, colour, &format!("guest {guest}"));
        }
        picture.polyline([(LEFT, BOTTOM), (LEFT + WIDTH, BOTTOM)].into_iter(), "#888");
        let struck_at = self.struck_at.unwrap_or_default();
        let mut later = self.moments.iter().filter(|moment| moment.at > struck_at);
        let stopped = later.find(|moment| !moment.runs[STRUCK]);
        let again = stopped.and_then(|_| later.find(|moment| moment.runs[STRUCK]));
        let marks = [
            (self.struck_at, 40.0, "a cube is damaged"),
            (again.map(|moment| moment.at), 56.0, "its guest runs again"),
        ];
        for (at, y, text) in marks {
            if let Some(at) = at {
                picture.mark(x(at), y, BOTTOM, text);
            }
        }
        picture.text(LEFT, BOTTOM + 20.0, "black", "0 s");
        picture.text(LEFT + WIDTH - 30.0, BOTTOM + 20.0, "black", &format!("{end:.0} s"));
        picture.finish()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seconds  records of each guest in this second (-: it does not run)")?;
        for (moment, rates) in self.rates() {
            let text: Vec<String> = rates
                .iter()
                .zip(moment.runs)
                .map(|(rate, runs)| if runs { format!("{rate:>6}") } else { format!("{:>6}", "-") })
                .collect();
            writeln!(f, "{:>7}  {}", moment.at.as_secs(), text.join(" "))?;
        }
        Ok(())
    }
}
