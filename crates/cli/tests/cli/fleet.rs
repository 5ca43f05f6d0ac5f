//! The recipes in `dist/` for a check by many machines: Kubernetes' command lines, and a real Slurm on this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_testkit::{Image, build, damage, tool};
use serde_json::Value;

use super::{floe, image, ran};

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
}

/// The findings of a report.
fn findings(report: &str) -> Value {
    serde_json::from_str::<Value>(report).unwrap()["findings"].clone()
}

#[test]
fn the_jobs_of_kubernetes_check_a_volume() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(dist("kubernetes/check-shards.yaml")).unwrap();
    let commands: Vec<String> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']'))
        .map(|line| line.replace("/parts", folder.path().to_str().unwrap()))
        .map(|line| line.replace("/dev/data-0", image.path().to_str().unwrap()))
        .collect();
    let [shard, merge] = &commands[..] else { panic!("{commands:?}") };
    let shards: u32 = 16;
    assert!(text.contains(&format!("completions: {shards}\n")));
    for index in 0..shards {
        let line = shard.replace("$(JOB_COMPLETION_INDEX)", &index.to_string());
        let ran = floe(&line.split(", ").skip(1).collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let script = merge.strip_prefix("sh, -c, exec floe ").unwrap();
    let script = format!("exec {} {script}", env!("CARGO_BIN_EXE_floe"));
    let ran = ran(&Command::new("sh").args(["-c", &script]).output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// A Slurm of one node, with its daemons in a folder of its own.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }
}

/// Programs of Slurm and munge; without one of them there is no test.
const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "sbatch", "squeue"];

impl Slurm {
    /// `None`, with a note, where that is not possible.
    fn start() -> Option<Self> {
        let found = |name: &str| {
            let all = std::env::var("PATH").unwrap_or_default();
            all.split(':').chain(["/usr/sbin"]).any(|folder| Path::new(folder).join(name).exists())
        };
        if let Some(name) = PROGRAMS.into_iter().find(|name| !found(name)) {
            eprintln!("skipped: {name} is not installed");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: slurmd needs root");
            return None;
        }
        // Slurm's daemons refuse folders that everybody can write.
        let folder = tempfile::Builder::new().prefix("floe-slurm-").tempdir_in("/run").ok()?;
        let mut slurm = Self { folder, daemons: Vec::new() };
        slurm.configure();
        let path = |name: &str| slurm.folder.path().join(name).to_str().unwrap().to_owned();
        let (key, socket) = (path("munge.key"), path("munge.socket"));
        let (log, pid, seed) = (path("munge.log"), path("munge.pid"), path("munge.seed"));
        let munge = ["--foreground", "--force", "--key-file", &key, "--socket", &socket];
        let munge = [&munge[..], &["--log-file", &log, "--pid-file", &pid, "--seed-file", &seed]];
        slurm.daemon("munged", &munge.concat());
        slurm.daemon("slurmctld", &["-D", "-c"]);
        slurm.daemon("slurmd", &["-D", "-N", "node"]);
        slurm.until("the node is idle", |slurm| {
            let output = slurm.command("sinfo").args(["-h", "-o", "%T"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains("idle")
        });
        Some(slurm)
    }

    fn configure(&self) {
        let folder = self.folder.path().to_str().unwrap();
        let (ctld, node) = (free_port(), free_port());
        let text = format!(
            "ClusterName=floe\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\nCryptoType=crypto/munge\n\
             SlurmctldPort={ctld}\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
             SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
             SlurmctldLogFile={folder}/ctld.log\nSlurmdLogFile={folder}/slurmd.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             JobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nReturnToService=2\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nMinJobAge=300\n\
             NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=2 \
             State=UNKNOWN\nPartitionName=all Nodes=node Default=YES State=UP\n",
            host = host()
        );
        fs::write(self.folder.path().join("slurm.conf"), text).unwrap();
        let key: Vec<u8> = (0..1024u32).map(|at| (at * 37 % 251) as u8).collect();
        let path = self.folder.path().join("munge.key");
        fs::write(&path, key).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(path, mode).unwrap();
        for name in ["state", "spool"] {
            fs::create_dir(self.folder.path().join(name)).unwrap();
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let log = fs::File::create(self.folder.path().join(format!("{program}.out"))).unwrap();
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        self.daemons.push(command.spawn().unwrap());
        sleep(Duration::from_millis(500));
    }

    /// Waits, and fails with the logs if that takes too long.
    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            if begun.elapsed() > Duration::from_secs(120) {
                let logs = ["munged.out", "slurmctld.out", "slurmd.out"].map(|name| {
                    fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
                });
                panic!("not so in time: {what}\n{}", logs.join("\n----\n"));
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Waits until a job has ended; comes back with its state and exit code.
    fn end_of(&self, job: &str) -> String {
        let state = |slurm: &Self| {
            let output = slurm.command("scontrol").args(["-o", "show", "job", job]).output();
            String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
        };
        let ended =
            |text: &str| ["COMPLETED", "FAILED", "CANCELLED"].iter().any(|end| text.contains(end));
        self.until("the job has ended", |slurm| ended(&state(slurm)));
        state(self)
    }
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// An image with several groups, and damage in them.
fn damaged() -> Option<Image> {
    if tool::missing() {
        return None;
    }
    let image = Image::empty(32 << 20).unwrap();
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "8192"]).unwrap();
    damage::damage(&image, 3).unwrap();
    Some(image)
}

#[test]
fn slurm_runs_the_shards_and_merges_them() {
    let Some(image) = damaged() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let path = image.path().to_str().unwrap();
    let one = floe(&["check", "--json", "--accounting", "fingerprint", path]);
    assert_eq!(one.code, 4, "{}", one.err);
    let folder = slurm.folder.path().join("check");
    let output = slurm
        .command("sh")
        .arg(dist("slurm/floe-check.sh"))
        .args([path, folder.to_str().unwrap(), "5"])
        .env("FLOE", env!("CARGO_BIN_EXE_floe"))
        .current_dir(slurm.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let job = String::from_utf8(output.stdout).unwrap();
    let end = slurm.end_of(job.trim());
    let log = fs::read_to_string(folder.join("merge.log")).unwrap_or_default();
    assert!(end.contains("ExitCode=4:0"), "{end}\n{log}");
    let report = fs::read_to_string(folder.join("report.json")).unwrap();
    assert_eq!(findings(&report), findings(&one.out));
    // Five parts, five logs, the key, the report and the log of the merge.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 13);
}
