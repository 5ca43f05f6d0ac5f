//! Pictures of measurements (SVG) for documents.

/// A picture that is being drawn. All sizes are in its own units; (0, 0) is the upper left corner.
pub struct Picture(String);

impl Picture {
    /// A white area.
    pub fn new(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    /// Writes one line, whose lower left corner is at (`x`, `y`). `text` has no `<` and no `&`.
    pub fn text(&mut self, x: f64, y: f64, colour: &str, text: &str) {
        self.0 += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{text}</text>\n");
    }

    /// Draws a line through points.
    pub fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.0 += &format!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>\n");
    }

    /// Marks a moment: a red line from (`x`, `y`) down to `bottom`, with a text beside its upper end.
    pub fn mark(&mut self, x: f64, y: f64, bottom: f64, text: &str) {
        self.polyline([(x, y), (x, bottom)].into_iter(), "red");
        self.text(x + 4.0, y + 12.0, "red", text);
    }

    /// The whole file.
    #[must_use]
    pub fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}
