//! Hadoop's NameNode and DataNodes as processes of this machine, and what they tell of themselves.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::timeline::Counts;

const NAME_NODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATA_NODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";
/// Time for all nodes to be there.
const PATIENCE: Duration = Duration::from_secs(240);
/// Short periods, so that a failure and its end fit a minute; blocks as small as HDFS permits.
const SETTINGS: [(&str, &str); 11] = [
    ("dfs.replication", "2"),
    ("dfs.blocksize", "1048576"),
    ("dfs.heartbeat.interval", "1"),
    ("dfs.namenode.redundancy.interval.seconds", "1s"),
    ("dfs.namenode.resource.du.reserved", "0"),
    ("dfs.datanode.du.reserved", "0"),
    // A volume has 192 MiB; by default one needs a GiB of free space to be chosen.
    ("dfs.datanode.round-robin-volume-choosing-policy.additional-available-space", "0"),
    ("dfs.datanode.failed.volumes.tolerated", "1"),
    ("dfs.datanode.disk.check.min.gap", "0ms"),
    ("dfs.datanode.directoryscan.interval", "600"),
    ("dfs.permissions.enabled", "false"),
];
const LOGGING: &str = "log4j.rootLogger=INFO,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
";

/// Fetches Hadoop's jars if they are not there.
///
/// # Errors
/// Neither the jars nor mvn and java are there, or fetching fails.
pub(super) fn fetch(jars: &Path) -> Result<()> {
    for program in ["java", "mvn"] {
        let found = Command::new(program).arg("-version").output();
        ensure!(
            found.is_ok(),
            "{program} is not installed (Debian: openjdk-17-jdk-headless, maven)"
        );
    }
    if fs::read_dir(jars).is_ok_and(|mut all| all.next().is_some()) {
        return Ok(());
    }
    fs::create_dir_all(jars)?;
    let project = tempfile::tempdir()?;
    fs::write(project.path().join("pom.xml"), include_str!("pom.xml"))?;
    let to = format!("-DoutputDirectory={}", fs::canonicalize(jars)?.display());
    let status = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", &to])
        .current_dir(project.path())
        .status()?;
    ensure!(status.success(), "mvn ended with {status}");
    Ok(())
}

/// The processes. Dropping it kills them.
pub(super) struct Cluster {
    folder: PathBuf,
    class_path: String,
    uri: String,
    /// Ports where the NameNode and the first DataNode tell their state.
    name_port: u16,
    data_port: u16,
    processes: Vec<Child>,
}

impl Cluster {
    /// Starts a NameNode, and a DataNode for each list of volumes.
    ///
    /// # Errors
    /// One does not start, or not in time.
    pub(super) fn start(jars: &Path, folder: &Path, volumes: &[Vec<PathBuf>]) -> Result<Self> {
        let [rpc, name_port, data_port] = [free_port()?, free_port()?, free_port()?];
        let uri = format!("hdfs://127.0.0.1:{rpc}");
        let conf = configure(folder, &uri, name_port)?;
        let class_path = format!("{}:{}/*", conf.display(), fs::canonicalize(jars)?.display());
        let folder = folder.to_owned();
        let mut cluster =
            Self { folder, class_path, uri, name_port, data_port, processes: Vec::new() };
        let format = cluster.java("format", &[NAME_NODE, "-format", "-force"])?.wait()?;
        ensure!(format.success(), "formatting HDFS ended with {format}: {}", cluster.log("format"));
        cluster.spawn("name", &[NAME_NODE])?;
        cluster.wait(|cluster| cluster.live() == Some(0))?;
        for (at, volumes) in volumes.iter().enumerate() {
            let dirs: Vec<_> =
                volumes.iter().map(|volume| format!("file://{}", volume.display())).collect();
            let web = if at == 0 { data_port } else { free_port()? };
            let ports =
                [("address", free_port()?), ("ipc.address", free_port()?), ("http.address", web)];
            let mut args =
                vec![DATA_NODE.to_owned(), format!("-Ddfs.datanode.data.dir={}", dirs.join(","))];
            args.extend(
                ports.map(|(name, port)| format!("-Ddfs.datanode.{name}=127.0.0.1:{port}")),
            );
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            cluster.spawn(&format!("data{at}"), &args)?;
        }
        let all = volumes.len() as u64;
        cluster.wait(|cluster| cluster.live() == Some(all))?;
        Ok(cluster)
    }

    /// A Java program, whose messages go to a log.
    fn java(&self, log: &str, args: &[&str]) -> Result<Child> {
        let log = File::create(self.log_path(log))?;
        let heap = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", &self.class_path];
        let mut command = Command::new("java");
        command.args(heap).args(args).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        command.spawn().context("starting java")
    }

    fn spawn(&mut self, log: &str, args: &[&str]) -> Result<()> {
        let process = self.java(log, args)?;
        self.processes.push(process);
        Ok(())
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_path(name)).unwrap_or_default()
    }

    fn wait(&mut self, is_there: impl Fn(&Self) -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_there(self) {
            for process in &mut self.processes {
                let ended = process.try_wait()?;
                ensure!(ended.is_none(), "a node of HDFS ended: see {}", self.folder.display());
            }
            ensure!(begin.elapsed() < PATIENCE, "HDFS did not start in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Lets the clients work; a line a second tells what each has done.
    ///
    /// # Errors
    /// They cannot be started.
    pub(super) fn clients(
        &mut self,
        seconds: u64,
    ) -> Result<impl Iterator<Item = Result<Vec<Counts>>> + use<>> {
        fs::write(self.folder.join("Clients.java"), include_str!("Clients.java"))?;
        let args = ["Clients.java", &self.uri, &seconds.to_string()];
        let mut clients = self.java("clients", &args)?;
        let output: ChildStdout = clients.stdout.take().context("no output of clients")?;
        self.processes.push(clients);
        Ok(BufReader::new(output).lines().map(|line| Counts::of_line(&line?)))
    }

    /// DataNodes that are alive; `None` if the NameNode does not answer.
    fn live(&self) -> Option<u64> {
        self.name_state().ok()?.get("NumLiveDataNodes")?.as_u64()
    }

    fn name_state(&self) -> Result<Value> {
        state(self.name_port, "Hadoop:service=NameNode,name=FSNamesystemState")
    }

    /// Blocks that lack a copy, or get one.
    ///
    /// # Errors
    /// The NameNode does not answer.
    pub(super) fn under_replicated(&self) -> Result<u64> {
        let state = self.name_state()?;
        let count = |name: &str| {
            state.get(name).and_then(Value::as_u64).with_context(|| format!("no {name}"))
        };
        Ok(count("LowRedundancyBlocks")? + count("PendingReconstructionBlocks")?)
    }

    /// Volumes that the first DataNode has given up.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn failed_volumes(&self) -> Result<Vec<String>> {
        let state = state(self.data_port, "Hadoop:service=DataNode,name=FSDatasetState-*")?;
        let all = state.get("FailedStorageLocations").and_then(Value::as_array);
        let all = all.context("no FailedStorageLocations")?;
        Ok(all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Blocks that DataNodes have copied to others: names without the generation.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(super) fn copied_blocks(&self) -> Result<BTreeSet<String>> {
        let mut blocks = BTreeSet::new();
        for node in 0.. {
            let path = self.log_path(&format!("data{node}"));
            if !path.exists() {
                break;
            }
            let log = fs::read_to_string(path)?;
            blocks.extend(log.lines().filter(is_transfer).filter_map(block_in));
        }
        Ok(blocks)
    }

    /// Blocks that the first DataNode was writing when it failed.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub(super) fn interrupted_blocks(&self) -> Result<BTreeSet<String>> {
        let log = fs::read_to_string(self.log_path("data0"))?;
        Ok(log.lines().filter(|line| line.contains("Exception")).filter_map(block_in).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Writes the configuration; returns its folder.
fn configure(folder: &Path, uri: &str, name_port: u16) -> Result<PathBuf> {
    let conf = folder.join("conf");
    for app in ["hdfs", "datanode"] {
        // The jars lack the web pages; the servers want their folders.
        let web = conf.join("webapps").join(app).join("WEB-INF");
        fs::create_dir_all(&web)?;
        fs::write(web.join("web.xml"), "<web-app version=\"2.4\"/>")?;
    }
    let file = |settings: &[(&str, &str)]| {
        let mut text = "<configuration>\n".to_owned();
        for (name, value) in settings {
            let _ =
                writeln!(text, "<property><name>{name}</name><value>{value}</value></property>");
        }
        text + "</configuration>\n"
    };
    let names = format!("file://{}", folder.join("names").display());
    let web = format!("127.0.0.1:{name_port}");
    let own = [("dfs.namenode.name.dir", &*names), ("dfs.namenode.http-address", &*web)];
    fs::write(conf.join("core-site.xml"), file(&[("fs.defaultFS", uri)]))?;
    fs::write(conf.join("hdfs-site.xml"), file(&[&SETTINGS[..], &own[..]].concat()))?;
    fs::write(conf.join("log4j.properties"), LOGGING)?;
    Ok(conf)
}

fn is_transfer(line: &&str) -> bool {
    line.contains("Starting thread to transfer")
}

/// The block that a line of a log names, without its generation.
fn block_in(line: &str) -> Option<String> {
    let number = line.split("blk_").nth(1)?.split('_').next()?;
    Some(format!("blk_{number}"))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The first of the beans of a server with this name.
fn state(port: u16, name: &str) -> Result<Value> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /jmx?qry={name} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let mut all: Value = serde_json::from_str(body).context("the state of a node")?;
    all["beans"].as_array_mut().and_then(|beans| beans.pop()).with_context(|| format!("no {name}"))
}
