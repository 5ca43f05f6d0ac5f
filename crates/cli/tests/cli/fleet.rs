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

/// A Slurm of two nodes on this host, with its daemons in a folder of its own.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

const NODES: [&str; 2] = ["node1", "node2"];

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
        for node in NODES {
            slurm.daemon("slurmd", &["-D", "-N", node]);
        }
        slurm.until("both nodes are idle", |slurm| {
            NODES.iter().all(|node| slurm.state_of(node) == "idle")
        });
        Some(slurm)
    }

    fn configure(&self) {
        let folder = self.folder.path().to_str().unwrap();
        let ctld = free_port();
        let nodes = NODES.map(|node| {
            let port = free_port();
            format!(
                "NodeName={node} NodeHostname={} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN\n",
                host()
            )
        });
        let text = format!(
            "ClusterName=floe\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket,cred_expire=10\nCryptoType=crypto/munge\n\
             SlurmctldPort={ctld}\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n\
             SlurmctldPidFile={folder}/ctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n\
             SlurmctldLogFile={folder}/ctld.log\nSlurmdLogFile={folder}/slurmd-%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             JobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nReturnToService=2\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nMinJobAge=300\n\
             SlurmdTimeout=10\n{nodes}PartitionName=all Nodes=node[1-2] Default=YES State=UP\n",
            host = host(),
            nodes = nodes.concat()
        );
        fs::write(self.folder.path().join("slurm.conf"), text).unwrap();
        let key: Vec<u8> = (0..1024u32).map(|at| (at * 37 % 251) as u8).collect();
        let path = self.folder.path().join("munge.key");
        fs::write(&path, key).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(path, mode).unwrap();
        for name in ["state", "spool-node1", "spool-node2"] {
            fs::create_dir(self.folder.path().join(name)).unwrap();
        }
    }

    fn state_of(&self, node: &str) -> String {
        let output = self.command("sinfo").args(["-h", "-o", "%T", "-n", node]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Ends the daemon of a node without warning. Its jobs go on.
    fn lose(&mut self, node: &str) {
        // After munged and slurmctld.
        let at = 2 + NODES.iter().position(|name| *name == node).unwrap();
        self.daemons[at].kill().unwrap();
        self.daemons[at].wait().unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let log = fs::File::create(
            self.folder.path().join(format!("{program}-{}.out", self.daemons.len())),
        )
        .unwrap();
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
                let logs = ["munged-0.out", "slurmctld-1.out", "slurmd-2.out", "slurmd-3.out"].map(
                    |name| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default(),
                );
                panic!("not so in time: {what}\n{}", logs.join("\n----\n"));
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Submits a check in shards; comes back with the number of the job that merges.
    fn submit(&self, image: &Path, folder: &Path, program: &Path, shards: u32) -> String {
        let output = self
            .command("sh")
            .arg(dist("slurm/floe-check.sh"))
            .args([image, folder])
            .arg(shards.to_string())
            .env("FLOE", program)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
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

fn executable(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path, mode).unwrap();
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
    // Names that a shell could take for more than names.
    let folder = slurm.folder.path().join("it's \"a\" $(check) %j");
    let path = slurm.folder.path().join("it's \"a\" $(disk); `x` \\.img");
    std::os::unix::fs::symlink(image.path(), &path).unwrap();
    let job = slurm.submit(&path, &folder, Path::new(env!("CARGO_BIN_EXE_floe")), 5);
    let end = slurm.end_of(&job);
    let log = fs::read_to_string(folder.join("merge.log")).unwrap_or_default();
    assert!(end.contains("ExitCode=4:0"), "{end}\n{log}");
    let report = fs::read_to_string(folder.join("report.json")).unwrap();
    assert_eq!(findings(&report), findings(&one.out));
    // Five parts, five logs, the name of the check, the key, the report and the log of the merge.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 14);
    let script = |more: [&str; 3]| {
        let mut command = slurm.command("sh");
        ran(&command.arg(dist("slurm/floe-check.sh")).args(more).output().unwrap())
    };
    let (path, folder) = (path.to_str().unwrap(), folder.to_str().unwrap());
    for (wrong, why) in [
        ([path, folder, "4"], "belongs to another check: 5 shards"),
        (["/dev/other", folder, "5"], "belongs to another check"),
        ([path, "/nowhere", "0"], "not a number from 1"),
        ([path, "/nowhere", "many"], "not a number from 1"),
    ] {
        let ran = script(wrong);
        assert!(ran.code == 16 && ran.err.contains(why), "{wrong:?}: {}", ran.err);
    }
}

/// A node is lost while it runs a shard. Slurm repeats the shard on the other node; the lost one goes on and writes its
/// part as well, later.
#[test]
fn slurm_repeats_the_shards_of_a_lost_node() {
    let Some(image) = damaged() else { return };
    let Some(mut slurm) = Slurm::start() else { return };
    let path = image.path().to_str().unwrap();
    let one = floe(&["check", "--json", "--accounting", "fingerprint", path]);
    let folder = slurm.folder.path().join("check");
    // In the place of floe: the first run of shard 1 waits until it may go on.
    let marks = slurm.folder.path().to_str().unwrap().to_owned();
    let program = slurm.folder.path().join("floe");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *'--shard 1/4'*)\n\
         if mkdir {marks}/first; then\n\
         echo \"$SLURMD_NODENAME $PPID\" > {marks}/lost.new; mv {marks}/lost.new {marks}/lost\n\
         while ! test -e {marks}/go; do test -d {marks}/first || exit; sleep 0.2; done\n\
         {floe} \"$@\"; echo $? > {marks}/late; exit\nfi;; esac\nexec {floe} \"$@\"\n",
        floe = env!("CARGO_BIN_EXE_floe")
    );
    executable(&program, &script);
    let job = slurm.submit(image.path(), &folder, &program, 4);
    let lost = slurm.folder.path().join("lost");
    slurm.until("shard 1 runs", |_| lost.exists());
    let text = fs::read_to_string(lost).unwrap();
    let (node, step) = text.trim().split_once(' ').unwrap();
    slurm.lose(node);
    let end = slurm.end_of(&job);
    let report = fs::read_to_string(folder.join("report.json")).unwrap_or_default();
    // The lost node ends at last, and replaces the part of shard 1.
    fs::write(slurm.folder.path().join("go"), "").unwrap();
    let late = slurm.folder.path().join("late");
    slurm.until("the lost shard has ended", |_| late.exists());
    let _ = Command::new("kill").args(["-9", step]).status();
    assert!(end.contains("ExitCode=4:0"), "{end}");
    assert_eq!(findings(&report), findings(&one.out));
    assert_eq!(fs::read_to_string(late).unwrap().trim(), "0");
    let parts: Vec<String> =
        (0..4).map(|at| folder.join(format!("part-{at}")).to_str().unwrap().to_owned()).collect();
    let mut merge = vec!["check", "--json", path, "--merge"];
    merge.extend(parts.iter().map(String::as_str));
    assert_eq!(findings(&floe(&merge).out), findings(&one.out));
}

/// A shard that a signal ends is requeued. One that fails ends the check, and the same command completes it.
#[test]
fn slurm_requeues_a_killed_shard_and_a_failed_one_is_run_again() {
    let Some(image) = damaged() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let path = image.path().to_str().unwrap();
    let one = floe(&["check", "--json", "--accounting", "fingerprint", path]);
    let folder = slurm.folder.path().join("check");
    let marks = slurm.folder.path().to_str().unwrap().to_owned();
    let program = slurm.folder.path().join("floe");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {marks}/runs\ncase \"$*\" in\n\
         *'--shard 1/3'*) if mkdir {marks}/killed 2>/dev/null; then kill -9 $$; fi;;\n\
         *'--shard 2/3'*) if mkdir {marks}/failed 2>/dev/null; then echo no disk; exit 8; fi;;\n\
         esac\nexec {floe} \"$@\"\n",
        floe = env!("CARGO_BIN_EXE_floe")
    );
    executable(&program, &script);
    let job = slurm.submit(image.path(), &folder, &program, 3);
    let end = slurm.end_of(&job);
    assert!(end.contains("CANCELLED"), "{end}");
    assert!(fs::read_to_string(folder.join("shard-2.log")).unwrap().contains("no disk"));
    slurm.until("the killed shard was run again", |_| folder.join("part-1").exists());
    let log = fs::read_to_string(folder.join("shard-1.log")).unwrap();
    assert!(log.contains("signal 9 ended the shard, which is requeued"), "{log}");
    let job = slurm.submit(image.path(), &folder, &program, 3);
    let end = slurm.end_of(&job);
    assert!(end.contains("ExitCode=4:0"), "{end}");
    let report = fs::read_to_string(folder.join("report.json")).unwrap();
    assert_eq!(findings(&report), findings(&one.out));
    let runs = fs::read_to_string(slurm.folder.path().join("runs")).unwrap();
    let runs_of = |share: &str| runs.lines().filter(|line| line.contains(share)).count();
    assert_eq!(["--shard 0/3", "--shard 1/3", "--shard 2/3"].map(runs_of), [1, 2, 2], "{runs}");
}
