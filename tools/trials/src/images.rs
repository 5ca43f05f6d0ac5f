//! `cargo xtask images`: writes the base images, or damaged ones, to a folder for inspection.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use floe_testkit::{Profile, build, damage};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Output folder
    #[arg(default_value = "target/images")]
    folder: PathBuf,
    /// Only these profiles; by default all
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// Damage the images according to this seed
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.folder)?;
    for profile in Profile::named(&args.profile)? {
        let (image, what) = match args.seed {
            None => (build::base(profile)?, String::new()),
            Some(seed) => {
                let (image, damage) = damage::damaged_image(profile, seed)?;
                (image, damage.to_string())
            }
        };
        let path = args.folder.join(format!("{profile}.img"));
        let copied =
            Command::new("cp").arg("--sparse=always").arg(image.path()).arg(&path).status()?;
        if !copied.success() {
            bail!("cannot write {}", path.display());
        }
        println!("{} {what}", path.display());
    }
    Ok(())
}
