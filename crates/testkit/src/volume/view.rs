//! Replaces the objects that a recipe names, so that one recipe makes many images.

/// Replacements for the paths and groups of a recipe. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Paths, each with its replacement; `<12>` is inode 12.
    pub paths: Vec<(String, String)>,
    /// Added to the number of each group, modulo the number of groups.
    pub groups: u32,
}

impl View {
    /// The replacement of a path, or the path itself.
    pub fn path<'p>(&'p self, path: &'p str) -> &'p str {
        let swap = self.paths.iter().find(|(named, _)| named == path);
        swap.map_or(path, |(_, meant)| meant)
    }

    /// The replacement of a group, among `count` groups.
    pub fn group(&self, group: u32, count: u32) -> u32 {
        if group >= count {
            return group;
        }
        // Both are less than 2^32.
        ((u64::from(group) + u64::from(self.groups)) % u64::from(count)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_swapped_stands_for_itself() {
        let view = View { paths: vec![("/a".to_owned(), "<8>".to_owned())], groups: 3 };
        assert_eq!([view.path("/a"), view.path("/a/b")], ["<8>", "/a/b"]);
        assert_eq!([view.group(0, 4), view.group(2, 4), view.group(9, 4)], [3, 1, 9]);
        assert_eq!(View::default().group(2, 4), 2);
    }
}
