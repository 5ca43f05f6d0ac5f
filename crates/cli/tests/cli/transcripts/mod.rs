//! Tests the transcripts in the documentation: every command in a block marked `console` is run in
//! the scene of its page (`docs/scenes/*.sh`, which create damaged images), and must print the
//! shown output.
//!
//! `FLOE_SHOW=1` prints the actual output instead of failing, for writing a page.

mod page;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use floe_testkit::kernel::mount_available;
use floe_testkit::tool;
use page::{Block, Step, blocks, fits};

/// The pages with transcripts.
const PAGES: [&str; 5] = [
    "docs/automation.md",
    "docs/guide.md",
    "docs/how-floe-decides.md",
    "docs/install.md",
    "docs/reports.md",
];

/// The folder of a scene, with all files that its commands may change.
struct Stage {
    folder: tempfile::TempDir,
    /// Exit code of the last command, for `$?`.
    last: i32,
}

impl Stage {
    /// Runs the script of a scene in a new folder.
    fn new(scene: &str) -> Self {
        let folder = tool::scratch("floe-scene-").unwrap();
        let stage = Self { folder, last: 0 };
        fs::create_dir(stage.programs()).unwrap();
        fs::create_dir(stage.place()).unwrap();
        for name in ["floe", "fsck.ext4"] {
            symlink(env!("CARGO_BIN_EXE_floe"), stage.programs().join(name)).unwrap();
        }
        let script = repository().join("docs/scenes").join(format!("{scene}.sh"));
        let mut command = Command::new("sh");
        let made = command.arg(script).current_dir(stage.place()).output().unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "scene {scene}: {said}");
        stage
    }

    fn programs(&self) -> PathBuf {
        self.folder.path().join("programs")
    }

    /// Working folder of the commands: `/dev/` and `/mnt/` on a page are folders in it.
    fn place(&self) -> PathBuf {
        self.folder.path().join("place")
    }

    /// Runs a command of a page. Returns its output, with paths as on the page.
    fn run(&mut self, command: &str) -> Vec<String> {
        let place = self.place();
        let here = format!("{}/", place.display());
        let mut local = command.to_owned();
        for top in [" /dev/sd", " /mnt/", " /var/lib/floe/", "=/dev/sd"] {
            let (before, path) = top.split_at(1);
            local = local.replace(top, &format!("{before}{here}{}", &path[1..]));
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; (exit {}); {local}", self.last)])
            .current_dir(&place)
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.programs().display()))
            .env_remove("E2FSCK_CONFIG")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        self.last = output.status.code().expect("killed by a signal");
        assert!(![101, 127].contains(&self.last), "{command}: ended with {}", self.last);
        let said = String::from_utf8_lossy(&output.stdout).replace(&here, "/");
        said.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

impl Drop for Stage {
    /// Unmounts everything if a page fails between mount and umount.
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let here = self.place();
        let point = |line: &str| line.split(' ').nth(1).map(PathBuf::from);
        for point in mounts.lines().filter_map(point).filter(|point| point.starts_with(&here)) {
            let _ = Command::new("umount").arg(point).status();
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A page, read at run time.
fn text(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// The first prerequisite of a block that is missing.
fn missing(block: &Block) -> Option<String> {
    let is_there = |need: &&String| match need.as_str() {
        "root" => mount_available().is_ok(),
        program => Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success()),
    };
    block.needs.iter().find(|need| !is_there(need)).cloned()
}

fn play(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut stage: Option<(usize, Stage)> = None;
    for block in blocks(text) {
        if stage.as_ref().is_none_or(|(number, _)| *number != block.scene_number) {
            stage = Some((block.scene_number, Stage::new(&block.scene)));
        }
        let Some((_, stage)) = &mut stage else { continue };
        if let Some(need) = missing(&block) {
            eprintln!("skipped: {name} needs {need} for {:?}", block.steps[0].command);
            continue;
        }
        for Step { line, command, said: shown } in &block.steps {
            let said = stage.run(command);
            if std::env::var_os("FLOE_SHOW").is_some() {
                println!("$ {command}\n{}\n[{}]", said.join("\n"), stage.last);
            } else if !fits(shown, &said) {
                faults.push(format!("{name}:{line}: {command}\n{}\n", said.join("\n")));
            }
        }
    }
    faults
}

#[test]
fn pages_show_what_commands_say() {
    if tool::missing() {
        return;
    }
    let faults: Vec<String> = PAGES.iter().flat_map(|name| play(name, &text(name))).collect();
    assert!(faults.is_empty(), "not what the page shows:\n{}", faults.join("\n"));
}

/// Every block with transcripts must be tested, and every scene must be used.
#[test]
fn every_page_with_commands_of_floe_is_played() {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    pages.push(repository().join("README.md"));
    for path in pages.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(path).unwrap();
        let played = PAGES.iter().any(|name| path.ends_with(name));
        let shows = text.lines().any(|line| line.starts_with("$ "));
        assert!(played || !shows, "{} has transcripts that no test plays", path.display());
        assert_eq!(blocks(&text).is_empty(), !shows, "{}: unmarked transcripts", path.display());
    }
    let scenes = fs::read_dir(repository().join("docs/scenes")).unwrap();
    let used: BTreeSet<String> =
        PAGES.iter().flat_map(|name| blocks(&text(name))).map(|block| block.scene).collect();
    for scene in scenes.map(|entry| entry.unwrap().path()) {
        let name = scene.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(used.contains(&name), "no page plays {name}");
    }
}
