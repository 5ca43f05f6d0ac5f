//! Builds a subcommand's arguments lazily, only when it is invoked.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// Defers building the arguments `A` of a subcommand: building those of all subcommands would take
/// a good part of the time of checking a small file system.
#[derive(Debug)]
pub(crate) struct Lazy<A>(pub(crate) A);

impl<A: Args> Args for Lazy<A> {
    fn augment_args(command: Command) -> Command {
        command.defer(A::augment_args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(A::augment_args_for_update)
    }
}

impl<A: FromArgMatches> FromArgMatches for Lazy<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        A::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::Cli;

    #[test]
    fn command_lines_are_sound_and_explained() {
        // Builds and validates the arguments of all commands.
        Cli::command().debug_assert();
        let mut floe = Cli::command();
        floe.build();
        for command in floe.get_subcommands().filter(|command| !command.is_hide_set()) {
            let arguments = command.get_arguments().filter(|argument| argument.get_id() != "help");
            let name = command.get_name();
            assert!(name == "help" || arguments.count() > 0, "{name} has no arguments");
        }
        let repair = floe.find_subcommand_mut("repair").expect("a command of floe");
        let help = repair.render_long_help().to_string();
        assert!(help.contains("staged in memory"), "the explanation is missing: {help}");
    }
}
