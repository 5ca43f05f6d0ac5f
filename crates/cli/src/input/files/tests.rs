//! Every option that names a file is judged, in every command.

use std::any::TypeId;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory};
use floe_check::checkpoint::Share;
use floe_fuse::Transport;

use super::{OutputPath, Refused, names_file};
use crate::Cli;

/// Text options that do not name files: command, option, and reason.
const TEXTS: &[(&str, &str)] = &[
    // A shell command; the path that it prints is judged later.
    ("check", "snapshot_command"),
    ("check", "snapshot_size"),
    ("explain", "condition"),
    ("dump inode", "inode"),
    ("dump extents", "inode"),
    ("dump dirents", "inode"),
    ("dump htree", "inode"),
    ("dump xattrs", "inode"),
    ("dump block", "structure"),
    // Paths in the image; the last one of cp is judged separately.
    ("ls", "paths"),
    ("cat", "paths"),
    ("cp", "paths"),
    ("export", "path"),
    ("cube create", "path"),
    ("cube show", "path"),
    ("cube set", "path"),
    ("cube remove", "path"),
    ("cube move-in", "from"),
    ("cube move-in", "cube"),
    ("cube check", "cube"),
    ("cube repair", "cube"),
    ("check", "cube"),
    ("repair", "cube"),
    // Directories below a mount: its server is asked, and no file is written.
    ("cube check", "directory"),
    ("cube repair", "directory"),
    ("mkfs", "cubes"),
    // A folder or archive, judged once its prefix is known.
    ("salvage", "to"),
    // mkfs itself compares the source with the device.
    ("mkfs", "from"),
    ("mkfs", "owner"),
    ("mkfs", "uid_map"),
    ("mkfs", "gid_map"),
    ("mkfs", "epoch"),
    ("mkfs", "last_mounted"),
    // Mount points and mount options: Floe writes nothing to these paths.
    ("mount", "directory"),
    ("mount", "options"),
    ("umount", "directory"),
    ("status", "directory"),
    // e2fsck's command line has its own parser and test.
    ("fsck", "arguments"),
];

fn floe() -> Command {
    let mut floe = Cli::command();
    floe.build();
    floe
}

/// Calls `see` with every option that takes a value, and the words of its command.
fn each_option(command: &Command, words: &str, see: &mut impl FnMut(&str, &Arg)) {
    let takes_value = |option: &&Arg| option.get_action().takes_values();
    command.get_arguments().filter(takes_value).for_each(|option| see(words, option));
    // `help` has a copy of every command, without arguments.
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        each_option(inner, format!("{words} {}", inner.get_name()).trim_start(), see);
    }
}

fn is_of<T: 'static>(option: &Arg) -> bool {
    option.get_value_parser().type_id() == TypeId::of::<T>()
}

#[test]
fn every_option_with_a_file_has_one_of_the_two_types() {
    let (mut paths, mut texts) = (0, Vec::new());
    each_option(&floe(), "", &mut |words, option| {
        let name = option.get_id().as_str();
        if names_file(option) {
            paths += 1;
            return;
        }
        // The output folder for packaging.
        if words == "generate" {
            return;
        }
        if TEXTS.contains(&(words, name)) {
            texts.push((words.to_owned(), name.to_owned()));
            return;
        }
        assert!(!is_of::<PathBuf>(option), "{words} {name}: InputPath or OutputPath?");
        let value = option.get_value_names().unwrap_or_default();
        let value: Vec<&str> = value.iter().map(|value| value.as_str()).collect();
        assert!(
            !value.iter().any(|value| ["FILE", "PATH", "FOLDER", "DEVICE"].contains(value)),
            "{words} {name} {value:?}: InputPath or OutputPath?"
        );
        // Numbers and keywords of mke2fs.
        let text = is_of::<String>(option) && words != "mkfs" || is_of::<OsString>(option);
        assert!(!text, "{words} {name}: does its text name a file?");
        let number = is_of::<String>(option)
            || is_of::<u8>(option)
            || is_of::<u16>(option)
            || is_of::<usize>(option)
            || is_of::<u32>(option)
            || is_of::<u64>(option)
            || is_of::<Share>(option)
            || is_of::<Transport>(option)
            || is_of::<Duration>(option);
        let choice = !option.get_possible_values().is_empty();
        assert!(number || choice, "{words} {name}: its type is not known to name no file");
    });
    assert!(paths >= 16, "only {paths} options name files");
    for (words, name) in TEXTS {
        let known = (words.to_string(), name.to_string());
        assert!(texts.contains(&known), "{words} {name} is no option any more");
    }
}

/// A command line in which two options or positions name `shared`, and every other position a file
/// of its own.
fn line(
    words: &str,
    command: &Command,
    two: [&Arg; 2],
    shared: &str,
    folder: &str,
) -> Vec<OsString> {
    let mut line = vec!["floe".to_owned()];
    line.extend(words.split(' ').map(str::to_owned));
    for position in command.get_positionals() {
        let is_shared = two.iter().any(|option| option.get_id() == position.get_id());
        let other = format!("{folder}/{}", position.get_id());
        line.push(if is_shared { shared.to_owned() } else { other });
    }
    for option in two {
        if let Some(long) = option.get_long() {
            line.extend([format!("--{long}"), shared.to_owned()]);
        }
    }
    // Options about the source require one, and those about a shard the other ones.
    if command.get_arguments().any(|option| option.get_long() == Some("from")) {
        line.extend(["--from", "dir:/"].map(str::to_owned));
    }
    let has = |id: &str| two.iter().any(|option| option.get_id() == id);
    // A report of a fleet needs results.
    if words == "report" && !has("fleet") {
        line.extend(["--fleet".to_owned(), format!("{folder}/results")]);
    }
    if has("out") || has("shard_key") {
        line.extend(["--shard", "0/2"].map(str::to_owned));
        if !has("out") {
            line.extend(["--out".to_owned(), format!("{folder}/part")]);
        }
    }
    line.into_iter().map(OsString::from).collect()
}

/// Each output of each command, against each other file of that command.
#[test]
fn no_output_is_an_input_or_another_output() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, shared) = (folder.path().to_str().unwrap(), folder.path().join("shared"));
    fs::write(&shared, b"precious").unwrap();
    let (mut judged, floe) = (0, floe());
    for command in floe.get_subcommands() {
        let files: Vec<&Arg> =
            command.get_arguments().filter(|option| names_file(option)).collect();
        let outputs = files.iter().filter(|option| is_of::<OutputPath>(option));
        for (output, other) in outputs.flat_map(|&output| files.iter().map(move |&o| (output, o))) {
            if output.get_id() == other.get_id() {
                continue;
            }
            let shared = shared.to_str().unwrap();
            let line = line(command.get_name(), command, [output, other], shared, folder);
            let (_, files) = match Cli::parse_files(&line) {
                Ok(parsed) => parsed,
                // Options that exclude each other need no test.
                Err(error) if error.kind() == ErrorKind::ArgumentConflict => continue,
                Err(error) => panic!("{line:?}: {error}"),
            };
            let refused = files.judge().unwrap_err();
            let fits = match is_of::<OutputPath>(other) {
                // The existing file is not an output of Floe, which is detected as well.
                true => matches!(refused, Refused::IsOutput { .. } | Refused::InTheWay { .. }),
                false => matches!(refused, Refused::IsInput { .. }),
            };
            assert!(fits, "{line:?}: {refused}");
            judged += 1;
        }
    }
    assert!(judged >= 20, "only {judged} pairs");
}

#[test]
fn what_is_written_beside_an_output_is_judged_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).into_os_string().into_string().unwrap();
    fs::write(at("image"), [0; 4096]).unwrap();
    fs::write(at("u.unfinished"), [0; 4096]).unwrap();
    fs::write(at("page"), b"<!DOCTYPE html><p>").unwrap();
    let judge = |line: &[&str]| {
        let line: Vec<OsString> = ["floe"].iter().chain(line).map(OsString::from).collect();
        Cli::parse_files(&line).unwrap().1.judge().map(drop)
    };
    assert!(judge(&["check", "--html", &at("page"), &at("image")]).is_ok());
    assert!(
        judge(&["check", "--html", &at("new"), "--metrics", "/dev/null", &at("image")]).is_ok()
    );
    for (line, expected) in [
        (["check", "--html", &at("u"), &at("u.unfinished")], "would overwrite DEVICE"),
        (["repair", "--undo", &at("x"), &at("x.journal")], "would overwrite DEVICE"),
        (["check", "--html", &at("u"), &at("image")], "did not make is in the way"),
        (["check", "--metrics", &at("image"), &at("page")], "did not make is in the way"),
        (["check", "--html", &at(""), &at("image")], "this is a folder"),
    ] {
        let refused = judge(&line).unwrap_err().to_string();
        assert!(refused.contains(expected), "{line:?}: {refused}");
    }
}
