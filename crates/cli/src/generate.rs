//! Generates man pages and shell completions from the command line definition, for packages. Not
//! part of the installed program (feature `generate`, see `make install`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{Arg, ArgAction};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::Cli;
use crate::e2fsck::table::{CONF, EXTENDED, FLAGS, Named};
use crate::exit::Outcome;
use crate::input::files;

/// Names of links to the program, for which completions are generated.
const NAMES: [&str; 3] = ["fsck.ext4", "fsck.ext3", "fsck.ext2"];

/// Write man pages and completions to a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Output folder; gets man1, man8, bash, zsh and fish
    folder: PathBuf,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let mut floe = Cli::command();
        floe.build();
        let floe = hint_files(floe);
        self.pages(&floe)?;
        self.save("man8/floe-fsck.8", &fsck_page()?)?;
        let names = NAMES.map(fsck_command);
        for command in std::iter::once(floe).chain(names) {
            for (folder, shell) in
                [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)]
            {
                let name = command.get_name().to_owned();
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
                let file = match shell {
                    Shell::Zsh => format!("{folder}/_{name}"),
                    Shell::Fish => format!("{folder}/{name}.fish"),
                    _ => format!("{folder}/{name}"),
                };
                self.save(&file, &text)?;
            }
        }
        writeln!(out, "{}: man pages and completions", self.folder.display())?;
        Ok(Outcome::CLEAN)
    }

    /// One page for the program, and one for each command.
    fn pages(&self, floe: &Command) -> anyhow::Result<()> {
        let mut text = Vec::new();
        Man::new(floe.clone()).render(&mut text)?;
        self.save("man1/floe.1", &text)?;
        for command in floe.get_subcommands().filter(|command| !command.is_hide_set()) {
            // e2fsck's command line has a page of its own.
            if matches!(command.get_name(), "help" | "fsck") {
                continue;
            }
            let name = format!("floe-{}", command.get_name());
            let command = command.clone().name(name.clone()).version(env!("CARGO_PKG_VERSION"));
            let mut text = Vec::new();
            Man::new(command).render(&mut text)?;
            self.save(&format!("man1/{name}.1"), &text)?;
        }
        Ok(())
    }

    fn save(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&path, bytes).with_context(|| path.display().to_string())
    }
}

/// Makes shells complete file names where options take files.
fn hint_files(command: Command) -> Command {
    let hint = |option: Arg| match files::names_file(&option) {
        true => option.value_hint(clap::ValueHint::FilePath),
        false => option,
    };
    command.mut_args(hint).mut_subcommands(hint_files)
}

/// e2fsck's command line as a clap command, from the table of options.
fn fsck_command(name: &'static str) -> Command {
    let flags = FLAGS.iter().map(|flag| {
        let letter = char::from(flag.letter);
        let arg = Arg::new(letter.to_string()).short(letter).help(flag.help);
        match flag.value {
            Some(value) => arg.value_name(value).value_hint(hint(value)),
            None => arg.action(ArgAction::Count),
        }
    });
    Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Checks and repairs ext2, ext3 and ext4 file systems, with e2fsck's command line")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(flags)
        .arg(
            Arg::new("device")
                .required(true)
                .value_hint(clap::ValueHint::FilePath)
                .help("A path, LABEL=, UUID=, PARTLABEL= or PARTUUID="),
        )
}

fn hint(value: &str) -> clap::ValueHint {
    match value {
        "file" | "journal" => clap::ValueHint::FilePath,
        _ => clap::ValueHint::Other,
    }
}

fn fsck_page() -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(fsck_command("floe-fsck")).title("floe-fsck").section("8");
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]);
    for name in ["floe fsck"].iter().chain(&NAMES) {
        page.text([bold(*name), roman(" [-n | -y | -p] [-f] [options] device")]);
        page.control("br", []);
    }
    page.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let mut page = Roff::new();
    page.control("SH", ["EXTENDED OPTIONS"]);
    list(&mut page, EXTENDED, "=");
    page.control("SH", ["CONFIGURATION"]);
    page.text([roman(
        "/etc/e2fsck.conf, or the file that E2FSCK_CONFIG names; see e2fsck.conf(5).",
    )]);
    for (section, relations) in CONF {
        page.control("SS", [format!("[{section}]").as_str()]);
        list(&mut page, relations, " = ");
    }
    page.control("SH", ["EXIT CODE"]);
    page.text([roman(
        "The sum of: 0 clean, 1 repaired, 2 repaired and a reboot is required, 4 damage \
         left, 8 operational error, 16 usage error, 32 cancelled by the user.",
    )]);
    page.control("SH", ["SIGNALS"]);
    page.text([roman(
        "SIGUSR1 starts the progress output, SIGUSR2 stops it (see -C). SIGINT, SIGTERM and SIGHUP \
         end the run; writes to the device are finished first.",
    )]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("floe(1), floe-check(1), floe-repair(1), floe-undo(1), fsck(8)")]);
    page.to_writer(&mut text)?;
    Ok(text)
}

fn list(page: &mut Roff, named: &[Named], between: &str) {
    for option in named {
        page.control("TP", []);
        let value = option.value.map(|value| format!("{between}{value}")).unwrap_or_default();
        page.text([bold(format!("{}{value}", option.name))]);
        page.text([roman(option.help)]);
    }
}
