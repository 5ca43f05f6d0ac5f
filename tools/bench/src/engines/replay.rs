//! Replays recorded reads with fio.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::recorded::{Lane, Read};
use crate::measure::Cost;

/// Alignment of direct reads.
const DIRECT_BYTES: u64 = 4096;
/// fio's name of the engine with one `pread` per read.
pub(super) const PSYNC: &str = "psync";
/// fio's name of the engine under test.
pub(super) const IO_URING: &str = "io_uring";

/// Reads, and how to issue them.
pub(super) struct Replay {
    pub(super) engine: &'static str,
    /// Queue depth of a job.
    pub(super) depth: u32,
    pub(super) direct: bool,
    pub(super) reads: Logs,
}

/// fio logs in a folder, one per job.
#[derive(Clone)]
pub(super) struct Logs {
    folder: PathBuf,
    jobs: usize,
    reads: u64,
    bytes: u64,
}

impl Logs {
    /// Writes the logs for some lists of reads of `image` to `folder`.
    pub(super) fn write(folder: &Path, image: &Path, lanes: &[Lane], direct: bool) -> Result<Self> {
        fs::create_dir_all(folder)?;
        // A log cannot express a space in a file name.
        let link = folder.join("image");
        std::os::unix::fs::symlink(image, &link)?;
        let name = link.display().to_string();
        ensure!(!name.contains(char::is_whitespace), "fio cannot be told of {name}");
        let (mut reads, mut bytes) = (0, 0);
        for (job, lane) in lanes.iter().enumerate() {
            let align = if direct { DIRECT_BYTES } else { 1 };
            let lane: Vec<Read> = lane.iter().map(|read| read.aligned(align)).collect();
            reads += lane.len() as u64;
            bytes += lane.iter().map(|read| read.len).sum::<u64>();
            fs::write(folder.join(format!("reads-{job}")), log(&name, &lane))?;
        }
        Ok(Self { folder: folder.to_owned(), jobs: lanes.len(), reads, bytes })
    }

    pub(super) const fn jobs(&self) -> usize {
        self.jobs
    }
}

/// The reads as a fio log of version 2, which has no timestamps, because all reads are issued at
/// once.
fn log(image: &str, reads: &[Read]) -> String {
    let lines = reads
        .iter()
        .map(|read| format!("{image} read {} {}\n", read.offset, read.len))
        .collect::<String>();
    format!("fio version 2 iolog\n{image} add\n{image} open\n{lines}")
}

impl Replay {
    pub(super) fn run(&self) -> Result<Cost> {
        let folder = &self.reads.folder;
        let (gate, out) = (folder.join("gate"), folder.join("out.json"));
        if !gate.exists() {
            ensure!(Command::new("mkfifo").arg(&gate).status()?.success(), "mkfifo failed");
        }
        let mut fio = Command::new("fio");
        // Run jobs as processes: as threads, those of fio 3.33 sometimes fail with a file that is
        // not open.
        fio.current_dir(folder)
            .args(["--output-format=json", "--output=out.json", "--readonly"])
            // Keep the page cache and the readahead hints as Floe has them.
            .args(["--invalidate=0", "--fadvise_hint=0", "--replay_no_stall=1"])
            // Read no clocks for each read.
            .args(["--disable_lat=1", "--disable_clat=1", "--disable_slat=1"])
            .arg("--disable_bw_measurement=1")
            .args([format!("--ioengine={}", self.engine), format!("--iodepth={}", self.depth)])
            .arg(format!("--direct={}", u8::from(self.direct)));
        for job in 0..self.reads.jobs {
            fio.arg(format!("--name=job-{job}"))
                .arg(format!("--read_iolog=reads-{job}"))
                .arg(format!("--exec_prerun=> here-{job} < gate :"));
            drop(fs::remove_file(folder.join(format!("here-{job}"))));
        }
        let child = fio
            .stdout(Stdio::null())
            .spawn()
            .context("fio is needed, which the Debian package fio has")?;
        self.through_the_gate(child, &gate)?;
        let (wall, reads) = ran(told(&fs::read_to_string(&out)?)?)?;
        let wanted = self.reads.reads;
        ensure!(reads == wanted, "fio made {reads} reads, where there were {wanted}");
        Ok(Cost { wall, read_mb: self.reads.bytes as f64 / 1e6, ..Cost::default() })
    }

    /// Starts all jobs at once: each parses its log first, which takes time in proportion to its
    /// length.
    fn through_the_gate(&self, mut fio: Child, gate: &Path) -> Result<()> {
        let folder = &self.reads.folder;
        let waits = |job| folder.join(format!("here-{job}")).exists();
        while !(0..self.reads.jobs).all(waits) && fio.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Allows for the delay from the ready message to waiting at the gate; late jobs find it
        // open.
        std::thread::sleep(Duration::from_millis(30));
        // A write-only open would wait for a reader, and there is none if fio failed.
        let open = OpenOptions::new().read(true).write(true).open(gate)?;
        let status = fio.wait()?;
        drop(open);
        ensure!(status.success(), "fio ended with {status}");
        Ok(())
    }
}

/// The JSON in fio's output, which also contains other messages.
fn told(output: &str) -> Result<&str> {
    let (begin, end) = (output.find('{'), output.rfind('}'));
    let json = begin.zip(end).and_then(|(begin, end)| output.get(begin..=end));
    json.with_context(|| format!("fio said: {output}"))
}

/// Seconds from the common start of all jobs to the end of the last one, and the total number of
/// reads, from fio's report. fio's byte count omits reads in flight when the last one is issued.
fn ran(told: &str) -> Result<(f64, u64)> {
    let told: Value = serde_json::from_str(told)?;
    let jobs = told["jobs"].as_array().context("fio tells of no jobs")?;
    let (mut most_ms, mut reads) = (0, 0);
    for job in jobs {
        ensure!(job["error"] == 0, "fio: error {} in {}", job["error"], job["jobname"]);
        let number = |name: &str| job["read"][name].as_u64().with_context(|| format!("no {name}"));
        most_ms = most_ms.max(number("runtime")?);
        reads += number("total_ios")?;
    }
    Ok((most_ms as f64 / 1e3, reads))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn logs_are_as_fio_wants_them() {
        let reads = [Read { offset: 4096, len: 512 }, Read { offset: 0, len: 1024 }];
        let wanted = "fio version 2 iolog\n/t/image add\n/t/image open\n\
                      /t/image read 4096 512\n/t/image read 0 1024\n";
        assert_eq!(log("/t/image", &reads), wanted);
    }

    #[test]
    fn direct_reads_are_whole_units() {
        let folder = tempfile::tempdir().unwrap();
        let lanes =
            [vec![Read { offset: 1024, len: 1024 }], vec![Read { offset: 4096, len: 4097 }]];
        let at = |name: &str| folder.path().join(name);
        let logs = Logs::write(&at("direct"), Path::new("/image"), &lanes, true).unwrap();
        assert_eq!((logs.jobs, logs.reads, logs.bytes), (2, 2, 4096 + 8192));
        let second = fs::read_to_string(at("direct/reads-1")).unwrap();
        assert!(second.contains("/image read 4096 8192\n"), "{second}");
        let logs = Logs::write(&at("cached"), Path::new("/image"), &lanes, false).unwrap();
        assert_eq!(logs.bytes, 1024 + 4097);
    }

    #[test]
    fn the_last_job_says_how_long_it_was() {
        let job = |ms: u64, error: i32| json!({ "jobname": "j", "error": error, "read": { "runtime": ms, "total_ios": 7 } });
        let (wall, reads) =
            ran(&json!({ "jobs": [job(20, 0), job(1500, 0)] }).to_string()).unwrap();
        assert_eq!((wall, reads), (1.5, 14));
        assert!(ran(&json!({ "jobs": [job(20, 5)] }).to_string()).is_err());
        assert!(ran("{}").is_err());
    }

    #[test]
    fn what_fio_says_besides_is_left_out() {
        let output = "job-0 : Saving output of prerun in job-0.prerun.txt\n{\n\"jobs\": []\n}\n";
        assert_eq!(told(output).unwrap().trim(), "{\n\"jobs\": []\n}");
        assert!(told("fio: engine io_uring not loadable\n").is_err());
    }
}
