//! Drawings that need nothing from around them: no style sheet, no identifiers, no scripts.

use std::fmt::Write as _;

/// What text and axes are drawn in.
pub(crate) const INK: &str = "#222222";

/// Lines that only help the eye.
pub(crate) const FAINT: &str = "#d4d4d4";

/// Height of letters that are read, in the unit of the drawing: a pixel at full width.
pub(crate) const LETTERS: f64 = 13.0;

/// What the title takes at the top.
const TITLE_HEIGHT: f64 = 30.0;

/// A point: from the left, and from the top.
pub(crate) type Point = (f64, f64);

/// A rectangle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Area {
    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stroke {
    pub(crate) color: &'static str,
    pub(crate) width: f64,
    /// Lengths of dashes and gaps; empty for a whole line.
    pub(crate) dash: &'static str,
}

impl Stroke {
    pub(crate) const fn plain(color: &'static str, width: f64) -> Self {
        Self { color, width, dash: "" }
    }
}

/// What stands at the points of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
}

/// On which side of its point a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing that is being made.
pub(crate) struct Svg {
    width: f64,
    body: String,
}

impl Svg {
    pub(crate) const fn new(width: f64) -> Self {
        Self { width, body: String::new() }
    }

    pub(crate) const fn width(&self) -> f64 {
        self.width
    }

    /// The whole, with its title above, and a description for those who do not see it.
    pub(crate) fn finish(self, height: f64, title: &str, description: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\" font-size=\"{LETTERS}\">\n\
             <title>{title}</title>\n<desc>{description}</desc>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"0\" y=\"17\" font-size=\"16\" font-weight=\"bold\" \
             fill=\"{INK}\">{title}</text>\n\
             <g transform=\"translate(0 {TITLE_HEIGHT})\">\n{body}</g>\n</svg>\n",
            width = px(self.width),
            height = px(height + TITLE_HEIGHT),
            title = escaped(title),
            description = escaped(description),
            body = self.body
        )
    }

    /// A rectangle with its edge; `fill` may be `none`.
    pub(crate) fn rect(&mut self, area: Area, fill: &str, edge: &str) {
        let Area { left, top, width, height } = area;
        self.push(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" \
             stroke=\"{edge}\"/>",
            px(left),
            px(top),
            px(width.max(0.0)),
            px(height.max(0.0))
        ));
    }

    pub(crate) fn line(&mut self, from: Point, to: Point, stroke: Stroke) {
        self.path(&[from, to], stroke);
    }

    /// A line through all points; nothing for fewer than two.
    pub(crate) fn path(&mut self, points: &[Point], stroke: Stroke) {
        if points.len() < 2 {
            return;
        }
        let mut list = String::new();
        for (x, y) in points {
            write!(list, "{},{} ", px(*x), px(*y)).expect("a String takes everything");
        }
        let Stroke { color, width, dash } = stroke;
        let dash =
            if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        self.push(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{dash}/>",
            list.trim_end()
        ));
    }

    pub(crate) fn marker(&mut self, (x, y): Point, marker: Marker, color: &str) {
        let size = 3.6;
        let corners: &[Point] = match marker {
            Marker::Circle | Marker::Ring => {
                let (fill, edge) =
                    if marker == Marker::Ring { ("#ffffff", color) } else { (color, "#ffffff") };
                self.push(format_args!(
                    "<circle cx=\"{}\" cy=\"{}\" r=\"{size}\" fill=\"{fill}\" stroke=\"{edge}\"/>",
                    px(x),
                    px(y)
                ));
                return;
            }
            Marker::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            Marker::Triangle => &[(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
            Marker::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        };
        let mut list = String::new();
        for (dx, dy) in corners {
            write!(list, "{},{} ", px(x + dx * size), px(y + dy * size))
                .expect("a String takes everything");
        }
        self.push(format_args!(
            "<polygon points=\"{}\" fill=\"{color}\" stroke=\"#ffffff\" stroke-width=\"0.6\"/>",
            list.trim_end()
        ));
    }

    /// Text in ink, its base line at the point.
    pub(crate) fn text(&mut self, at: Point, anchor: Anchor, text: &str) {
        self.lettering(at, anchor, "", text);
    }

    /// The same in bold.
    pub(crate) fn bold(&mut self, at: Point, anchor: Anchor, text: &str) {
        self.lettering(at, anchor, " font-weight=\"bold\"", text);
    }

    fn lettering(&mut self, (x, y): Point, anchor: Anchor, weight: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.push(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{INK}\"{weight}>{}</text>",
            px(x),
            px(y),
            escaped(text)
        ));
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{element}").expect("a String takes everything");
    }
}

/// Text for XML and HTML, between tags or in quotes: nothing in it is markup any more.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            // XML has no place for these, not even escaped.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// About how wide a text is.
pub(crate) fn text_width(text: &str) -> f64 {
    let letters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    f64::from(letters) * LETTERS * 0.56
}

/// A text that is not wider than that: what is too much in the middle of it becomes `…`.
pub(crate) fn fitted(text: &str, width: f64) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut kept = chars.len();
    while kept > 4 && text_width(text) * ratio(kept, chars.len()) > width {
        kept -= 1;
    }
    if kept == chars.len() {
        return text.into();
    }
    let head = kept / 2;
    let tail = kept - head - 1;
    let (head, tail) = (&chars[..head], &chars[chars.len() - tail..]);
    format!("{}\u{2026}{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

fn ratio(part: usize, whole: usize) -> f64 {
    let as_f64 = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    as_f64(part) / as_f64(whole)
}

/// A coordinate with one decimal, within what every program can draw.
fn px(value: f64) -> String {
    let bounded = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let text = format!("{bounded:.1}");
    text.strip_suffix(".0").map_or(text.clone(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_whole_whatever_is_in_it() {
        let evil = "</title><script>alert('\"&\u{0}\u{1b}')</script>";
        let mut svg = Svg::new(100.0);
        svg.text((f64::NAN, f64::INFINITY), Anchor::End, evil);
        svg.bold((1.0, 2.0), Anchor::Middle, "x");
        svg.path(&[(1.0, 1.0)], Stroke::plain(INK, 1.0));
        for marker in
            [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Ring]
        {
            svg.marker((5.0, 5.0), marker, INK);
        }
        let text = svg.finish(50.0, evil, evil);
        let document = roxmltree::Document::parse(&text).expect("XML");
        let elements: Vec<_> = document
            .descendants()
            .filter(roxmltree::Node::is_element)
            .map(|node| node.tag_name().name())
            .collect();
        assert!(!elements.contains(&"script"));
        assert_eq!(elements.iter().filter(|name| **name == "polyline").count(), 0);
        let title = document.root_element().first_element_child().expect("a title");
        assert_eq!(title.text(), Some(evil.replace(['\u{0}', '\u{1b}'], "\u{fffd}").as_str()));
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(fitted("short", 100.0), "short");
        let long = fitted("a very long name of a subject, clients 64", 120.0);
        assert!(long.starts_with("a very") && long.ends_with("64"), "{long}");
        assert!(text_width(&long) <= 120.0);
        assert_eq!(px(-0.04), "-0");
    }
}
