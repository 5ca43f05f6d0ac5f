//! Writes elements. Names and raw text are ours (`&'static str`); all that comes from a disk or a
//! command line is text or the value of an attribute, and escaped: it cannot be anything else.

/// A page, or a part of one, as it grows.
#[derive(Debug, Default)]
pub struct Html(String);

/// Attributes of an element, with values that are not escaped yet.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn into_string(self) -> String {
        self.0
    }

    /// Markup of ours.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        escape(text, &mut self.0);
        self
    }

    /// An element with what `inner` writes in it.
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

    /// An element with nothing in it, closed as in XML.
    pub fn empty(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.open(name, attributes);
        self.0.push_str("/>");
        self
    }

    /// An element that holds text.
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

/// Escapes what has a meaning in HTML, what no page may hold, and what turns the direction of text,
/// by which a name could look like another.
fn escape(text: &str, into: &mut String) {
    for char in text.chars() {
        match char {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                into.extend(char.escape_unicode());
            }
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
