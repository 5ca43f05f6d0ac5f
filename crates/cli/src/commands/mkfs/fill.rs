//! Creates a file system with files in it.

use std::io::Write;

use anyhow::Context;
use floe_blockdev::Window;
use floe_disk::mkfs::tree::{Contents, Timestamp, Tree};
use floe_disk::mkfs::{FillOptions, Fresh, Options, TreePlan, WriteOptions, fill, fill_progress};

use super::target::Target;
use super::{Args, report, version_4};
use crate::exit::Outcome;
use crate::input::clock;
use crate::input::files::refuse_same;
use crate::input::random::random_bytes;
use crate::terminal::progress::{Watch, When};

/// An image made to size gets the parameters of a file system of at least this size: blocks of 4
/// KiB, unless requested otherwise.
const LEAST_USUAL_BYTES: u64 = 1 << 30;
/// Block size for estimating the space for a tree.
const BLOCK_BYTES: u32 = 4096;

impl Args {
    /// Creates a file system with the content of a source.
    pub(super) fn filled(
        &self,
        options: Options,
        size_blocks: Option<u64>,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        for read in self.from.read() {
            refuse_same(("DEVICE", &self.device), read)?;
            if let Some(map) = &self.bmap {
                refuse_same(("--bmap", map), read)?;
            }
        }
        let now = self.from.now()?;
        let now = now.unwrap_or(Timestamp { seconds: clock::now_seconds(), nanoseconds: 0 });
        let fresh =
            Fresh { uuid: version_4(random_bytes()?), hash_seed: version_4(random_bytes()?), now };
        let root = options.root();
        let job = Job { args: self, options, size_blocks, fresh };
        self.from.load(root, &mut |tree, contents| job.run(tree, contents, out))
    }
}

struct Job<'a> {
    args: &'a Args,
    options: Options,
    size_blocks: Option<u64>,
    fresh: Fresh,
}

impl Job<'_> {
    fn run(
        &self,
        tree: &Tree,
        contents: &dyn Contents,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let (args, options) = (self.args, &self.options);
        let offset = options.offset_bytes();
        let is_new = !args.device.exists();
        let spare = args.from.fit.or((is_new && self.size_blocks.is_none()).then_some(0));
        let (plan, target) = match spare {
            Some(percent) => {
                let data_bytes = tree.data_blocks(BLOCK_BYTES).saturating_mul(BLOCK_BYTES.into());
                let usual_bytes = data_bytes.max(LEAST_USUAL_BYTES);
                let params = options.params(usual_bytes, None, &self.fresh)?;
                let plan = TreePlan::fitted(&params, tree, percent)?;
                let wanted = Some(plan.plan().bytes());
                (plan, Target::look_at(&args.device, wanted, offset)?)
            }
            None => {
                let unit = u64::from(options.block_size().unwrap_or(1024));
                let wanted = self.size_blocks.map(|blocks| blocks.saturating_mul(unit));
                let target = Target::look_at(&args.device, wanted, offset)?;
                let usable = target.usable_bytes;
                let params = options.params(usable, self.size_blocks, &self.fresh)?;
                if params.blocks > usable / u64::from(params.block_size.max(1)) {
                    let name = args.device.display();
                    anyhow::bail!("{name} is smaller than the file system would be");
                }
                (TreePlan::new(&params, tree)?, target)
            }
        };
        target.refuse_if_used(args.force, args.as_mke2fs.is_some())?;
        report::warn(options, plan.plan());
        let tell = |out: &mut dyn Write| -> anyhow::Result<()> {
            if !args.quiet {
                report::tell(&args.device, plan.plan(), args.verbose, &mut *out)?;
                writeln!(out, "Files: {}", tree.len())?;
            }
            Ok(())
        };
        if args.dry_run {
            tell(&mut *out)?;
            if !args.quiet {
                writeln!(out, "Nothing was written.")?;
            }
            return Ok(Outcome::CLEAN);
        }
        let block_map = args.open_block_map()?;
        let device = target.open()?;
        let bytes = plan.plan().bytes();
        let zeroed = options.discard() && !args.keep && target.discard(bytes)?;
        let window = Window::new(&device, offset, Some(bytes))?;
        let watch =
            Watch::over(fill_progress(), if args.quiet { When::Never } else { args.progress });
        let options = FillOptions {
            threads: args.from.workers(),
            write: WriteOptions { reads_as_zeroes: zeroed },
            progress: watch.progress(),
        };
        watch
            .during(&|| 0, || fill(&plan, contents, &window, options))
            .with_context(|| args.device.display().to_string())
            .map_err(|error| target.give_up(error))?;
        tell(&mut *out)?;
        args.write_block_map(plan.plan(), &device, block_map)
    }
}
