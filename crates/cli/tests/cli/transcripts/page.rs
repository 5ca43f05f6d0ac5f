//! Transcripts in a page of Markdown.
//!
//! ````text
//! <!-- scene: server -->            from here on: a new folder, filled by docs/scenes/server.sh
//!
//! ```console                        further words name programs that must be there, or "root"
//! $ floe check sda2.img             a command; a line that ends with a backslash goes on
//! what it says, both of its outputs
//! ...                               any number of lines that are left out
//! ```
//! ````

/// A fenced block of commands and what they say.
#[derive(Debug)]
pub(crate) struct Block {
    /// The scene in which it plays.
    pub(crate) scene: String,
    /// Number of the scene in its page: the same name twice is two scenes.
    pub(crate) scene_number: usize,
    /// Programs that it requires, or `root`.
    pub(crate) needs: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

/// A command and what it says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Line of the page, from 1.
    pub(crate) line: usize,
    pub(crate) command: String,
    pub(crate) said: Vec<String>,
}

/// The blocks of a page, in their order.
///
/// Panics where a block is in no scene, or does not begin with a command: a page that is not
/// understood is not tested.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut scene, mut scene_number) = (Vec::new(), None, 0);
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(name) = line.strip_prefix("<!-- scene: ") {
            scene = name.strip_suffix(" -->").map(str::to_owned);
            scene_number += 1;
        }
        let Some(words) = line.strip_prefix("```console") else { continue };
        let scene: String = scene.clone().unwrap_or_else(|| panic!("line {}: no scene", index + 1));
        let needs = words.split_whitespace().map(str::to_owned).collect();
        let inside = lines.by_ref().take_while(|(_, line)| *line != "```");
        blocks.push(Block { scene, scene_number, needs, steps: steps(inside) });
    }
    blocks
}

fn steps<'p>(lines: impl Iterator<Item = (usize, &'p str)>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for (index, line) in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: index + 1, command: command.to_owned(), said: Vec::new() });
        } else {
            let step = steps.last_mut();
            let step = step.unwrap_or_else(|| panic!("line {}: no command", index + 1));
            if goes_on {
                step.command.push('\n');
                step.command.push_str(line);
            } else {
                step.said.push(line.trim_end().to_owned());
            }
        }
        goes_on = line.ends_with('\\') && steps.last().is_some_and(|step| step.said.is_empty());
    }
    steps
}

/// Whether `said` is what a page shows: each line equal, and `...` for any number of lines.
pub(crate) fn fits(shown: &[String], said: &[String]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return said.is_empty() };
    if first == "..." {
        return (0..=said.len()).any(|skipped| fits(rest, &said[skipped..]));
    }
    said.split_first().is_some_and(|(one, others)| still(one) == still(first) && fits(rest, others))
}

/// A line without what differs between two runs, or between two ways to the same result: the line of
/// what a run cost, and how often a repair looked at what it had staged.
fn still(line: &str) -> &str {
    if line.contains(" s with ") && line.contains(" read in ") {
        return "[cost]";
    }
    line.split_once(", staged and examined ").map_or(line, |(changes, _)| changes)
}

#[test]
fn pages_are_taken_apart() {
    let page = "text\n<!-- scene: a -->\n```console root\n$ one \\\n  two\nsaid\n$ three\n```\n\
                ```sh\n$ nothing\n```\n";
    let found = blocks(page);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].scene.as_str(), found[0].needs.as_slice()),
        ("a", &["root".to_owned()][..])
    );
    let step = |line, command: &str, said: &[&str]| Step {
        line,
        command: command.to_owned(),
        said: said.iter().map(|&line| line.to_owned()).collect(),
    };
    assert_eq!(found[0].steps, [step(4, "one \\\n  two", &["said"]), step(7, "three", &[])]);
}

#[test]
fn what_is_shown_is_compared() {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let cost = "0.03 s with 2 threads, 12.5 MiB read in 683 reads, at most 5.2 MiB of memory";
    let other = "7.10 s with 1 thread, 1.0 GiB read in 2 reads, at most 9 MiB of memory";
    for (shown, said, wanted) in [
        ("a\nb", "a\nb", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("a\n...\nd", "a\nb\nc\nd", true),
        ("a\n...\nd", "a\nb\nc", false),
        ("...\nd", "d", true),
        (cost, other, true),
        ("2 changes, staged and examined 2 times", "2 changes, staged and examined 3 times", true),
        ("2 changes, staged and examined 2 times", "3 changes, staged and examined 2 times", false),
        ("3 s with you", "4 s with you", false),
        ("", "", true),
    ] {
        assert_eq!(fits(&lines(shown), &lines(said)), wanted, "{shown:?} {said:?}");
    }
}
