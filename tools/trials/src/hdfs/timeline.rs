//! The answers of clients, NameNode and a DataNode in each second, as text and as a picture.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floe_testkit::picture::Picture;

/// Work of a client since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) written: u64,
    pub(super) read: u64,
    pub(super) failed: u64,
}

impl Counts {
    /// A line of the clients: three numbers each.
    pub(super) fn of_line(line: &str) -> Result<Vec<Self>> {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map(|number| number.parse().with_context(|| format!("a line of clients: {line}")))
            .collect::<Result<_>>()?;
        let (all, rest) = numbers.as_chunks::<3>();
        ensure!(rest.is_empty() && !all.is_empty(), "a line of clients: {line}");
        Ok(all.iter().map(|&[written, read, failed]| Self { written, read, failed }).collect())
    }
}

/// One second.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) at: Duration,
    /// By client.
    pub(super) counts: Vec<Counts>,
    /// Blocks that lack a copy.
    pub(super) behind: u64,
    pub(super) failed_volumes: usize,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    pub(super) moments: Vec<Moment>,
    pub(super) failed_at: Option<Duration>,
}

/// Seconds of a line of the text.
const LINE_SECONDS: usize = 5;

impl Timeline {
    /// Files that each client wrote and read in one second, by moment from the second one on.
    fn rates(&self) -> impl Iterator<Item = (&Moment, Vec<u64>)> {
        self.moments.windows(2).map(|pair| {
            let of = |moment: &Moment| -> Vec<u64> {
                moment.counts.iter().map(|counts| counts.written + counts.read).collect()
            };
            let (before, now) = (of(&pair[0]), of(&pair[1]));
            (&pair[1], now.iter().zip(before).map(|(now, before)| now - before).collect())
        })
    }

    /// A picture: the rates of clients above, blocks that lack a copy below, the failure as a line.
    pub(super) fn svg(&self) -> String {
        let end = self.moments.last().map_or(1.0, |moment| moment.at.as_secs_f64());
        let x = |at: Duration| LEFT + at.as_secs_f64() / end * WIDTH;
        let most = self.rates().flat_map(|(_, rates)| rates).max().unwrap_or(1).max(1) as f64;
        let behind = self.moments.iter().map(|moment| moment.behind).max().unwrap_or(1).max(1);
        let mut picture = Picture::new(LEFT + WIDTH + 30.0, LOWER + 40.0);
        picture.text(
            LEFT,
            25.0,
            "black",
            &format!("files a second of each client (top: {most:.0})"),
        );
        let lacking = format!("blocks that lack a copy (top: {behind})");
        picture.text(LEFT, UPPER + 35.0, "black", &lacking);
        for (client, colour) in COLOURS.iter().enumerate() {
            let points = self.rates().filter_map(|(moment, rates)| {
                let height = *rates.get(client)? as f64 / most * HEIGHT;
                Some((x(moment.at), UPPER - height))
            });
            picture.polyline(points, colour);
        }
        let height = |moment: &Moment| moment.behind as f64 / behind as f64 * HEIGHT;
        picture.polyline(self.moments.iter().map(|at| (x(at.at), LOWER - height(at))), "black");
        for y in [UPPER, LOWER] {
            picture.polyline([(LEFT, y), (LEFT + WIDTH, y)].into_iter(), "#888");
        }
        let reported = self.moments.iter().find(|moment| moment.failed_volumes > 0);
        let marks = [
            (self.failed_at, 40.0, "a cube fails"),
            (reported.map(|moment| moment.at), UPPER + 50.0, "one failed volume"),
        ];
        for (at, y, text) in marks {
            if let Some(at) = at {
                picture.mark(x(at), y, LOWER, text);
            }
        }
        picture.text(LEFT, LOWER + 20.0, "black", "0 s");
        picture.text(LEFT + WIDTH - 30.0, LOWER + 20.0, "black", &format!("{end:.0} s"));
        picture.finish()
    }
}

/// Sizes of the picture, in its own units.
const LEFT: f64 = 60.0;
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 150.0;
/// The lines on which the two charts stand.
const UPPER: f64 = 40.0 + HEIGHT;
const LOWER: f64 = 90.0 + 2.0 * HEIGHT;
const COLOURS: [&str; 4] = ["#1b6ca8", "#c0562c", "#3c8d40", "#7b4fa0"];

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seconds  files written and read by each client   failed  blocks behind  failed volumes"
        )?;
        let mut sums: Vec<u64> = Vec::new();
        for (at, (moment, rates)) in self.rates().enumerate() {
            sums.resize(rates.len(), 0);
            sums.iter_mut().zip(&rates).for_each(|(sum, rate)| *sum += rate);
            if (at + 1) % LINE_SECONDS != 0 {
                continue;
            }
            let text: Vec<String> = sums.iter().map(|sum| format!("{sum:>9}")).collect();
            let failed: u64 = moment.counts.iter().map(|counts| counts.failed).sum();
            let Moment { at, behind, failed_volumes, .. } = moment;
            let at = at.as_secs();
            writeln!(
                f,
                "{at:>7}  {}  {failed:>8}  {behind:>13}  {failed_volumes:>14}",
                text.join(" ")
            )?;
            sums.fill(0);
        }
        Ok(())
    }
}
