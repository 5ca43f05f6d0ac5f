//! `cargo xtask salvage-compare`: destroys metadata of an image and compares the files that
//! `floe salvage`, e2fsck, photorec, ext4magic and extundelete bring back. Programs that are not
//! installed are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_format::{GroupNr, InodeNr};
use floe_testkit::volume::Volume;
use floe_testkit::{Image, build, kernel, tool};

use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for images and results; preferably in a memory file system
    #[arg(long, default_value = "target/salvage-compare")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Folders in the image, each with 25 small files and 5 with extent blocks
    #[arg(long, default_value_t = 40)]
    folders: u64,
}

const BLOCK: u64 = 4096;
const IMAGE_BYTES: u64 = 256 << 20;
/// Longest run of a program in seconds.
const LIMIT_SECONDS: u32 = 600;

/// A kind of destruction.
#[derive(Clone, Copy)]
enum Damage {
    Tables,
    Directories,
    Tenth,
}

impl Damage {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Tables, "all inode tables zeroed"),
        (Self::Directories, "root and a third of the directory blocks zeroed"),
        (Self::Tenth, "first tenth overwritten"),
    ];

    fn strike(self, path: &Path) -> Result<()> {
        let image = Image::open(path)?;
        let volume = Volume::open(&image)?;
        match self {
            Self::Tables => {
                let blocks = u64::from(volume.geometry.inode_table_blocks);
                for group in 0..volume.geometry.group_count {
                    let table = volume.desc(GroupNr(group))?.inode_table;
                    let zeroes = vec![0; (blocks * BLOCK) as usize];
                    image.write(volume.geometry.offset_bytes(table), &zeroes)?;
                }
            }
            Self::Directories => {
                let mut random = Random(7);
                for (directory, blocks) in directory_blocks(&volume)? {
                    for block in blocks {
                        if directory == InodeNr::ROOT || random.below(3) == 0 {
                            image.write(block * BLOCK, &[0; BLOCK as usize])?;
                        }
                    }
                }
            }
            Self::Tenth => {
                let mut random = Random(9);
                image.write(0, &random.bytes((IMAGE_BYTES / 10) as usize))?;
            }
        }
        Ok(())
    }
}

impl Damage {
    /// How many files with extent blocks keep all their blocks.
    fn untouched(self, image: &Path, files: &BTreeMap<PathBuf, String>) -> Result<usize> {
        let image = Image::open(image)?;
        let volume = Volume::open(&image)?;
        let first = match self {
            Self::Tenth => IMAGE_BYTES / 10 / BLOCK + 1,
            Self::Tables | Self::Directories => 0,
        };
        let mut left = 0;
        for path in files.keys().filter(|path| has_extents(path)) {
            let map = volume.map(volume.lookup(&format!("/{}", path.display()))?)?;
            let mut blocks =
                map.data.values().copied().chain(map.nodes.iter().map(|node| node.block));
            left += usize::from(blocks.all(|block| block.0 >= first));
        }
        Ok(left)
    }
}

fn directory_blocks(volume: &Volume<'_>) -> Result<Vec<(InodeNr, Vec<u64>)>> {
    const DIRECTORY: u8 = 2;
    let (mut queue, mut found) = (vec![InodeNr::ROOT], Vec::new());
    while let Some(directory) = queue.pop() {
        let blocks = volume.map(directory)?.data.values().map(|block| block.0).collect();
        found.push((directory, blocks));
        for entry in volume.entries(directory)? {
            let is_dot = matches!(&entry.name[..], b"." | b"..");
            if entry.inode.0 != 0 && entry.file_type == DIRECTORY && !is_dot {
                queue.push(entry.inode);
            }
        }
    }
    Ok(found)
}

/// A small generator of random numbers (xorshift), the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }

    /// Lines of text, which carvers recognise.
    fn text(&mut self, len: usize) -> Vec<u8> {
        let mut text = Vec::new();
        while text.len() < len {
            text.extend(format!("{:x} is not {:x}.\n", self.next(), self.next()).bytes());
        }
        text
    }
}

/// Fills a folder: small files, half of them text; links; files with holes, which need extent blocks.
fn fill(top: &Path, folders: u64) -> Result<()> {
    let mut random = Random(5);
    for at in 0..folders {
        let folder = top.join(format!("folder-{at}"));
        fs::create_dir_all(folder.join("below"))?;
        for file in 0..25 {
            let len = 1 + random.below(30_000) as usize;
            let (name, bytes) = match file % 2 {
                0 => (format!("small-{file}.txt"), random.text(len)),
                _ => (format!("small-{file}.bin"), random.bytes(len)),
            };
            fs::write(folder.join(name), bytes)?;
        }
        symlink("small-0.txt", folder.join("link"))?;
        for file in 0..5 {
            let holed = File::create(folder.join(format!("below/extents-{file}.bin")))?;
            for piece in 0..6 + random.below(50) {
                holed.write_all_at(&random.bytes(4096), piece * 3 * BLOCK)?;
            }
        }
    }
    Ok(())
}

/// Digests of all regular files below a folder, by path. Zeroes at the end are left out, because
/// without its inode the size of a file is unknown.
fn digests(top: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let (mut queue, mut found) = (vec![top.to_owned()], BTreeMap::new());
    while let Some(folder) = queue.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?;
            if kind.is_dir() {
                queue.push(path);
            } else if kind.is_file() && kind.len() < IMAGE_BYTES {
                let bytes = fs::read(&path)?;
                let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let digest = floe_testkit::tree::digest(&bytes[..used]);
                found.insert(path.strip_prefix(top)?.to_owned(), digest);
            }
        }
    }
    Ok(found)
}

/// A program that brings files of an image back into a folder; `None` if it is not installed.
type Rescue = fn(&Path, &Path, &Path) -> Option<Command>;

const PROGRAMS: [(&str, Rescue); 5] = [
    ("floe salvage", |floe, image, out| {
        let mut command = Command::new(floe);
        command.arg("salvage").arg(image).arg("--to").arg(out.join("new"));
        Some(command)
    }),
    ("e2fsck -fy", |floe, image, out| {
        // The repaired image is read by `floe cp`, which needs no mount.
        let mut command = Command::new("sh");
        let script = "\"$3\" -fy \"$1\" > \"$2/log\"; \"$4\" cp -a \"$1\" / \"$2\"";
        command.args(["-c", script, "sh"]).args([image, out]);
        command.arg(tool::locate("e2fsck")).arg(floe);
        Some(command)
    }),
    ("photorec", |_, image, out| {
        let mut command = installed("photorec")?;
        command.arg("/d").arg(out.join("recup")).arg("/cmd").arg(image);
        command.arg("partition_none,fileopt,everything,enable,wholespace,search");
        Some(command)
    }),
    ("ext4magic -M", |_, image, out| {
        let mut command = installed("ext4magic")?;
        command.arg(image).arg("-M").arg("-d").arg(out);
        Some(command)
    }),
    ("extundelete", |_, image, out| {
        let mut command = installed("extundelete")?;
        command.arg(image).arg("--restore-all").arg("-o").arg(out.join("restored"));
        Some(command)
    }),
];

fn installed(program: &str) -> Option<Command> {
    let place =
        ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|folder| format!("{folder}/{program}"));
    place.into_iter().find(|path| Path::new(path).exists()).map(Command::new)
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(anyhow::Error::msg)?;
    fs::create_dir_all(&args.folder)?;
    let folder = args.folder.canonicalize()?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?.canonicalize()?;
    let tree = folder.join("tree");
    renewed(&tree)?;
    fill(&tree, args.folders)?;
    let original = digests(&tree)?;
    println!("{} files, {} of them with extent blocks", original.len(), count(&original, true));
    for (maker, image) in images(&folder, &tree, &floe)? {
        for (damage, name) in Damage::ALL {
            println!("\n## {maker}; {name}\n");
            let left = damage.untouched(&image, &original)?;
            println!("{left} of the files with extent blocks have all their blocks.\n");
            println!(
                "| Program | contents | with extent blocks | and names | and paths | others |"
            );
            println!("|---|---|---|---|---|---|");
            for (program, rescue) in PROGRAMS {
                compare(&folder, &image, damage, &original, (program, rescue, &floe))?;
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn renewed(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

/// The image that mke2fs fills, where mounts are possible one that Linux fills, and a native one.
fn images(folder: &Path, tree: &Path, floe: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let make = |name: &str, options: &[&str]| -> Result<PathBuf> {
        let path = folder.join(name);
        File::create(&path)?.set_len(IMAGE_BYTES)?;
        build::mke2fs(&path, &[&["-t", "ext4", "-b", "4096"], options].concat())?;
        Ok(path)
    };
    let tree = tree.to_str().context("the folder has an odd name")?;
    let native = folder.join("native.img");
    let mut made = Command::new(floe);
    made.args(["mkfs", "-q", "-t", "native", "--from", &format!("dir:{tree}")]).arg(&native);
    ensure!(made.arg(IMAGE_BYTES.to_string()).status()?.success(), "floe mkfs failed");
    let mut images = vec![("made by mke2fs -d", make("mke2fs.img", &["-d", tree])?)];
    if kernel::mount_available().is_ok() {
        let path = make("linux.img", &[])?;
        let mount = kernel::Mounted::new(&path, "rw")?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(format!("{tree}/.")).arg(mount.path());
        ensure!(copy.status()?.success(), "cp failed");
        mount.unmount()?;
        images.push(("filled by Linux", path));
    }
    images.push(("native", native));
    Ok(images)
}

fn compare(
    folder: &Path,
    image: &Path,
    damage: Damage,
    original: &BTreeMap<PathBuf, String>,
    (program, rescue, floe): (&str, Rescue, &Path),
) -> Result<()> {
    let (damaged, out) = (folder.join("damaged.img"), folder.join("out"));
    renewed(&out)?;
    fs::copy(image, &damaged)?;
    damage.strike(&damaged)?;
    let Some(mut command) = rescue(floe, &damaged, &out) else {
        println!("| {program} | not installed | | | | |");
        return Ok(());
    };
    command.current_dir(&out);
    tool::run(&command, LIMIT_SECONDS)?;
    let found = digests(&out)?;
    let digests_found: BTreeSet<&String> = found.values().collect();
    let named: BTreeSet<_> =
        found.iter().map(|(path, digest)| (path.file_name(), digest)).collect();
    let all = original.len();
    let content = original.values().filter(|digest| digests_found.contains(digest)).count();
    let extents = original
        .iter()
        .filter(|(path, digest)| has_extents(path) && digests_found.contains(digest))
        .count();
    let names = original
        .iter()
        .filter(|(path, digest)| named.contains(&(path.file_name(), *digest)))
        .count();
    let is_there = |path: &Path, digest: &String| {
        ["", "new", "restored"]
            .iter()
            .any(|top| found.get(&Path::new(top).join(path)) == Some(digest))
    };
    let paths = original.iter().filter(|(path, digest)| is_there(path, digest)).count();
    let known: BTreeSet<&String> = original.values().collect();
    let others = found.values().filter(|digest| !known.contains(digest)).count();
    let share =
        |part: usize, whole: usize| format!("{part} ({:.1} %)", 100.0 * part as f64 / whole as f64);
    println!(
        "| {program} | {} | {} | {} | {} | {others} |",
        share(content, all),
        share(extents, count(original, true)),
        share(names, all),
        share(paths, all)
    );
    Ok(())
}

fn has_extents(path: &Path) -> bool {
    path.to_string_lossy().contains("extents-")
}

fn count(files: &BTreeMap<PathBuf, String>, with_extents: bool) -> usize {
    files.keys().filter(|path| has_extents(path) == with_extents).count()
}
