//! Writes HTML elements. Names and raw markup are constants (`&'static str`). Anything from a disk
//! or a command line can only be written as text or attribute value, and is escaped.

/// A page or fragment under construction.
#[derive(Debug, Default)]
pub struct Html(String);

/// Attributes of an element; the values are escaped when written.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// An empty fragment.
    pub fn new() -> Self {
        Self::default()
    }

    /// The markup written so far.
    pub fn into_string(self) -> String {
        self.0
    }

    /// Writes constant markup unescaped.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Writes escaped text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        escape(text, &mut self.0);
        self
    }

    /// Writes an element whose content is written by `inner`.
    pub fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        inner: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.open(name, attributes);
        self.0.push('>');
        inner(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
        self
    }

    /// Writes an empty element, closed as in XML.
    pub fn empty(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.open(name, attributes);
        self.0.push_str("/>");
        self
    }

    /// Writes an element that contains text.
    pub fn leaf(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        text: &str,
    ) -> &mut Self {
        self.element(name, attributes, |html| {
            html.text(text);
        })
    }

    fn open(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            escape(value, &mut self.0);
            self.0.push('"');
        }
    }
}

/// Whether a character is invisible, or changes the direction of those after it.
pub(crate) const fn misleads(char: char) -> bool {
    matches!(
        char,
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}'
    )
}

/// Escapes HTML metacharacters, characters not allowed in a page, and bidirectional controls, with
/// which a name could imitate another.
fn escape(text: &str, into: &mut String) {
    for char in text.chars() {
        match char {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            char if misleads(char) => into.extend(char.escape_unicode()),
            char if char.is_control() && char != '\n' => into.extend(char.escape_default()),
            char => into.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_a_disk_is_only_text() {
        let mut html = Html::new();
        html.element("p", &[("title", "\"><script>")], |html| {
            html.text("</p><b>&amp;'\u{202e}\u{7}\0\n");
        });
        html.empty("br", &[]);
        assert_eq!(
            html.into_string(),
            "<p title=\"&quot;&gt;&lt;script&gt;\">&lt;/p&gt;&lt;b&gt;&amp;amp;&#39;\\u{202e}\\u{7}\
             \\u{0}\n</p><br/>"
        );
    }
}
