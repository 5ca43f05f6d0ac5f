//! Snapshots of LVM volumes, thin and thick, with LVM's tools.
//!
//! LVM suspends the volume while it takes the snapshot, and the kernel freezes the file system on
//! it. An additional freeze would be dangerous, because LVM's own files may be on the frozen file
//! system.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use floe_blockdev::FileDevice;

use super::command::run;
use super::teardown::Teardown;
use super::{Mounted, Snapshot};

/// A logical volume.
#[derive(Debug, PartialEq, Eq)]
struct Volume {
    group: String,
    name: String,
    is_thin: bool,
}

/// LVM's programs, and the location of its device nodes.
#[derive(Clone, Debug)]
pub(super) struct Lvm {
    /// `None`: the system's programs.
    programs: Option<PathBuf>,
    nodes: PathBuf,
}

impl Default for Lvm {
    fn default() -> Self {
        Self { programs: None, nodes: PathBuf::from("/dev") }
    }
}

impl Lvm {
    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        match &self.programs {
            Some(folder) => run(folder.join(program), arguments),
            None => run(program, arguments),
        }
    }

    /// A snapshot of a mounted file system on a logical volume. `size` applies to thick volumes.
    pub(super) fn snapshot(
        &self,
        mounted: &Mounted,
        device: &Path,
        size: &str,
    ) -> anyhow::Result<Snapshot> {
        let volume = self.volume(device)?;
        let name = format!("floe-check-{}", std::process::id());
        let full_name = format!("{}/{name}", volume.group);
        let origin = format!("{}/{}", volume.group, volume.name);
        let made = Teardown::after(|| {
            let space = if size.contains('%') { "--extents" } else { "--size" };
            let thick = [space, size];
            let mut arguments = vec!["--snapshot", "--permission", "r", "--name", &name];
            // A thin snapshot is not activated by default, and reserves no space.
            arguments.extend(if volume.is_thin { ["--setactivationskip", "n"] } else { thick });
            arguments.push(&origin);
            self.run("lvcreate", &arguments)?;
            let (lvm, name) = (self.clone(), full_name.clone());
            Ok(((), Box::new(move || lvm.remove(&name)) as _))
        });
        let ((), teardown) = made.with_context(|| format!("no snapshot of {origin}"))?;
        let method = if volume.is_thin { "lvm-thin" } else { "lvm-thick" };
        let about = mounted.about(method, None);
        let device = FileDevice::open(&self.nodes.join(&full_name))?;
        let lvm = self.clone();
        let verdict_counts = move || {
            if volume.is_thin { Ok(()) } else { lvm.refuse_overflown(&full_name) }
        };
        Ok(Snapshot {
            about,
            device: Box::new(device),
            teardown,
            verdict_counts: Box::new(verdict_counts),
        })
    }

    fn volume(&self, device: &Path) -> anyhow::Result<Volume> {
        let path = device.to_string_lossy();
        let columns = "vg_name,lv_name,segtype";
        let arguments = ["--noheadings", "--separator", "|", "--options", columns, &path];
        let said = self.run("lvs", &arguments)?;
        parse(&said).with_context(|| format!("lvs says of {path}: {said:?}"))
    }

    /// Fails if a thick snapshot has overflowed and is therefore invalid.
    fn refuse_overflown(&self, name: &str) -> anyhow::Result<()> {
        let said = self.run("lvs", &["--noheadings", "--options", "lv_attr", name])?;
        // The fifth character is the state: I for an invalid snapshot, S for a suspended invalid
        // one.
        if matches!(said.trim().as_bytes().get(4), Some(b'I' | b'S')) {
            bail!(
                "the snapshot {name} ran out of space during the check, whose result is therefore \
                 void. Reserve more with --snapshot-size"
            );
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.run("lvremove", &["--yes", name]).map(drop).with_context(|| {
            format!("the snapshot {name} still exists; remove it with: lvremove {name}")
        })
    }
}

/// "  group|volume|thin"; one line per segment.
fn parse(said: &str) -> anyhow::Result<Volume> {
    let line = said.lines().find(|line| !line.trim().is_empty()).context("nothing")?;
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [group, name, kind] = fields[..] else { bail!("unexpected output") };
    if group.is_empty() || name.is_empty() {
        bail!("no name");
    }
    Ok(Volume { group: group.to_owned(), name: name.to_owned(), is_thin: kind == "thin" })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use floe_blockdev::{DeviceNumber, ReadBlocks};

    use super::*;

    /// Fake LVM programs that record their command lines and answer as described in lvs(8). The
    /// command lines were also verified with the real programs (2.03.16).
    struct Recorded {
        folder: tempfile::TempDir,
    }

    impl Recorded {
        fn new(kind: &str, attributes: &str, lvcreate: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir_all(at("dev/vg")).unwrap();
            let log = at("log").display().to_string();
            let node = at("dev/vg").display().to_string();
            let scripts = [
                (
                    "lvs",
                    format!(
                        "case \"$*\" in *lv_attr*) echo '  {attributes}';; \
                         *) echo '  vg|root|{kind}';; esac"
                    ),
                ),
                // The fifth argument is the name of the snapshot.
                ("lvcreate", format!("printf snapshot > {node}/\"$5\"; {lvcreate}")),
                ("lvremove", format!("rm {node}/../\"$2\"")),
            ];
            for (name, body) in scripts {
                let text = format!("#!/bin/sh\necho {name} \"$@\" >> {log}\n{body}\n");
                fs::write(at(name), text).unwrap();
                fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
            }
            Self { folder }
        }

        fn snapshot(&self, size: &str) -> anyhow::Result<Snapshot> {
            let lvm = Lvm {
                programs: Some(self.folder.path().to_owned()),
                nodes: self.folder.path().join("dev"),
            };
            let mounted = Mounted {
                point: PathBuf::from("/"),
                device: PathBuf::from("/dev/dm-0"),
                number: DeviceNumber { major: 253, minor: 0 },
            };
            lvm.snapshot(&mounted, Path::new("/dev/mapper/vg-root"), size)
        }

        /// The recorded command lines, with the process id removed.
        fn calls(&self) -> Vec<String> {
            let text = fs::read_to_string(self.folder.path().join("log")).unwrap();
            let text = text.replace(&std::process::id().to_string(), "PID");
            text.lines().map(str::to_owned).collect()
        }
    }

    const ASKED: &str =
        "lvs --noheadings --separator | --options vg_name,lv_name,segtype /dev/mapper/vg-root";
    const REMOVED: &str = "lvremove --yes vg/floe-check-PID";

    #[test]
    fn a_thin_snapshot_is_made_read_and_removed() {
        let recorded = Recorded::new("thin", "Vri-a-tz--", "exit 0");
        let snapshot = recorded.snapshot("10%ORIGIN").unwrap();
        assert_eq!(snapshot.about.method, "lvm-thin");
        let mut bytes = [0; 8];
        snapshot.device.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"snapshot");
        snapshot.verify().unwrap();
        snapshot.remove().unwrap();
        let made = "lvcreate --snapshot --permission r --name floe-check-PID --setactivationskip n \
                    vg/root";
        assert_eq!(recorded.calls(), [ASKED, made, REMOVED]);
    }

    #[test]
    fn a_thick_snapshot_gets_space_and_must_not_overflow() {
        for (size, space) in [("10%ORIGIN", "--extents 10%ORIGIN"), ("2g", "--size 2g")] {
            for (attributes, fits) in [("sri-a-s---", true), ("sri-I-s---", false)] {
                let recorded = Recorded::new("linear", attributes, "exit 0");
                let snapshot = recorded.snapshot(size).unwrap();
                assert_eq!(snapshot.about.method, "lvm-thick");
                assert_eq!(snapshot.verify().is_ok(), fits);
                // The snapshot is removed in any case.
                drop(snapshot);
                let made = format!(
                    "lvcreate --snapshot --permission r --name floe-check-PID {space} vg/root"
                );
                let looked = "lvs --noheadings --options lv_attr vg/floe-check-PID";
                assert_eq!(recorded.calls(), [ASKED, &made, looked, REMOVED]);
            }
        }
    }

    #[test]
    fn a_snapshot_that_was_not_made_is_not_removed() {
        let recorded = Recorded::new("thin", "", "echo '  no space' >&2; exit 5");
        let error = format!("{:#}", recorded.snapshot("1g").err().unwrap());
        assert!(error.contains("no snapshot of vg/root") && error.contains("no space"), "{error}");
        assert!(!recorded.calls().iter().any(|call| call.starts_with("lvremove")));
    }

    #[test]
    fn what_lvs_says_is_understood() {
        let volume = |is_thin| Volume { group: "vg".into(), name: "root".into(), is_thin };
        assert_eq!(parse("  vg|root|linear\n").unwrap(), volume(false));
        assert_eq!(parse("  vg|root|thin\n").unwrap(), volume(true));
        assert_eq!(parse("  vg|root|linear\n  vg|root|striped\n").unwrap(), volume(false));
        for bad in ["", "  \n", "vg root thin", "|root|thin", "vg||thin", "a|b|c|d"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
