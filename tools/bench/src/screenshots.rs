//! `cargo xtask screenshots`: takes browser screenshots of the report pages for prepared images:
//! `docs/images/*.png`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use floe_testkit::tool;
use floe_workload::fill::{Shape, fill};

use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the screenshots
    #[arg(default_value = "docs/images")]
    folder: PathBuf,
    /// Also keep the HTML pages there
    #[arg(long)]
    pages: bool,
    /// The browser
    #[arg(long, default_value = "chromium")]
    browser: PathBuf,
    /// The program; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// A fixed time, so that the pages are reproducible.
const NOW: &str = "1795286399";
/// Maximum size of a screenshot in bytes.
const MOST_BYTES: u64 = 150 << 10;
/// Width of the pages in pixels.
const WIDTH: u32 = 1120;

/// A page: name, image, exit code, and command.
type Page = (&'static str, &'static str, i32, &'static [&'static str]);

const PAGES: [Page; 3] = [
    ("clean", "clean.img", 0, &["check"]),
    ("damaged", "damaged.img", 4, &["check"]),
    ("repair", "damaged.img", 1, &["repair", "--dry-run"]),
];

/// A screenshot: name, page, height in pixels, and whether it uses the dark theme.
const PICTURES: [(&str, &str, u32, bool); 4] = [
    ("report-damaged", "damaged", 2620, false),
    ("report-damaged-dark", "damaged", 2620, true),
    ("report-clean", "clean", 1500, false),
    ("report-repair", "repair", 2400, false),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = match &args.floe {
        Some(path) => path.clone(),
        None => built_floe()?,
    };
    // It runs in another folder.
    let floe = fs::canonicalize(floe)?;
    let scratch = tool::scratch("floe-screenshots")?;
    let folder = scratch.path();
    make_images(folder)?;
    fs::create_dir_all(&args.folder)?;
    for (name, image, code, command) in PAGES {
        let page = folder.join(format!("{name}.html"));
        let status = Command::new(&floe)
            .current_dir(folder)
            .args(command)
            .arg("--html")
            .arg(&page)
            .arg(image)
            .env("E2FSCK_TIME", NOW)
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.code() == Some(code), "floe {command:?} {image} ended with {status}");
        if args.pages {
            fs::copy(&page, args.folder.join(format!("{name}.html")))?;
        }
    }
    for (name, page, height, dark) in PICTURES {
        let page = folder.join(format!("{page}.html"));
        let picture = args.folder.join(format!("{name}.png"));
        photograph(args, folder, &page, &picture, height, dark)?;
        shrink(&picture)?;
    }
    shrink(&print_first_sheet(args, folder)?)
}

fn browser(args: &Args, folder: &Path) -> Command {
    let mut browser = Command::new(&args.browser);
    browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    browser.arg(format!("--user-data-dir={}", folder.join("browser").display()));
    browser.stdout(Stdio::null()).stderr(Stdio::null());
    browser
}

fn photograph(
    args: &Args,
    folder: &Path,
    page: &Path,
    picture: &Path,
    height: u32,
    dark: bool,
) -> Result<()> {
    let scheme = if dark { 0 } else { 1 };
    let status = browser(args, folder)
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--window-size={WIDTH},{height}"))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display()))
        .status()
        .with_context(|| {
            format!("starting {} (Debian: apt install chromium)", args.browser.display())
        })?;
    ensure!(status.success() && picture.exists(), "the browser ended with {status}");
    Ok(())
}

/// Prints the damaged image's page, and converts its first sheet to a picture.
fn print_first_sheet(args: &Args, folder: &Path) -> Result<PathBuf> {
    let paper = folder.join("paper.pdf");
    let page = folder.join("damaged.html");
    let status = browser(args, folder)
        .arg("--no-pdf-header-footer")
        .arg(format!("--print-to-pdf={}", paper.display()))
        .arg(format!("file://{}", page.display()))
        .status()?;
    ensure!(status.success() && paper.exists(), "the browser ended with {status}");
    let out = args.folder.join("report-paper");
    let status = Command::new("pdftoppm")
        .args(["-png", "-r", "75", "-f", "1", "-l", "1", "-singlefile"])
        .arg(&paper)
        .arg(&out)
        .status()
        .context("starting pdftoppm (Debian: apt install poppler-utils)")?;
    ensure!(status.success(), "pdftoppm ended with {status}");
    Ok(out.with_extension("png"))
}

/// Quantises a picture to a palette: a third of the size without visible difference.
fn shrink(picture: &Path) -> Result<()> {
    let status = Command::new("pngquant")
        .args(["--speed", "1", "--force", "--output"])
        .arg(picture)
        .arg("128")
        .arg(picture)
        .status()
        .context("starting pngquant (Debian: apt install pngquant)")?;
    ensure!(status.success(), "pngquant ended with {status}");
    let bytes = fs::metadata(picture)?.len();
    println!("{} ({} KiB)", picture.display(), bytes / 1024);
    ensure!(bytes <= MOST_BYTES, "{} is too large for a repository", picture.display());
    Ok(())
}

/// A clean image, and one with several kinds of damage.
fn make_images(folder: &Path) -> Result<()> {
    let (clean, damaged) = (folder.join("clean.img"), folder.join("damaged.img"));
    let shape = Shape { dirs: 240, files_per_dir: 99, file_blocks: 24, size_bytes: 4 << 30 };
    fill(&clean, shape)?;
    let copied = Command::new("cp").arg("--sparse=always").arg(&clean).arg(&damaged).status()?;
    ensure!(copied.success(), "cannot write {}", damaged.display());
    debugfs(folder, &damaged, &damage())
}

/// debugfs commands for wrong fields, missing files, stray bits and multiply-claimed blocks.
fn damage() -> String {
    let mut lines = vec![
        "set_inode_field <4000> links_count 9".to_owned(),
        "set_inode_field <9000> size 17".to_owned(),
        "clri <6000>".to_owned(),
        "clri <6001>".to_owned(),
        "set_bg 1 free_blocks_count 7".to_owned(),
    ];
    for block in [640_000, 640_001, 640_002, 700_500, 799_000, 931_200, 1_000_000] {
        lines.push(format!("setb {block}"));
    }
    for inode in [7000, 7300, 12_000, 15_500] {
        lines.push(format!("set_inode_field <{inode}> block[5] 41000"));
    }
    lines.join("\n") + "\n"
}

fn debugfs(folder: &Path, image: &Path, script: &str) -> Result<()> {
    let file = folder.join("damage");
    fs::write(&file, script)?;
    let mut debugfs = tool::command("debugfs");
    debugfs.arg("-w").arg("-f").arg(&file).arg(image);
    let status = debugfs.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "debugfs ended with {status}");
    Ok(())
}
