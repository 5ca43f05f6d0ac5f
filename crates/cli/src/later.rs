//! Arguments of a command that are made up when it is called.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

/// The arguments `A` of a command, which cost nothing where another command is called: to make up those of
/// all takes as long as a check of a small file system.
#[derive(Debug)]
pub(crate) struct Later<A>(pub(crate) A);

impl<A: Args> Args for Later<A> {
    fn augment_args(command: Command) -> Command {
        command.defer(A::augment_args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(A::augment_args_for_update)
    }
}

impl<A: FromArgMatches> FromArgMatches for Later<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        A::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}
