//! Documents of the project as parts of manual pages.

use std::mem;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

/// Appends a document without its title: a section for each heading of level 2, a tagged paragraph
/// for each row of a table. Comments are dropped, and links keep their text.
pub(super) fn append(document: &str, roff: &mut Roff) {
    let mut page = Page::new(roff);
    for event in Parser::new_ext(document, Options::ENABLE_TABLES) {
        page.take(event);
    }
}

struct Page<'a> {
    roff: &'a mut Roff,
    /// The text since the last block ended.
    line: Vec<Inline>,
    /// Makes the inline of text as it is marked here.
    font: fn(String) -> Inline,
    lists: usize,
    /// Whether the next paragraph follows the bullet of an item.
    opens_item: bool,
    is_code_block: bool,
    is_section_heading: bool,
    /// Whether a paragraph has a block before it, from which `.PP` parts it.
    follows_block: bool,
    /// The cells of the head of the table, and of the row that is read.
    head: Vec<Vec<Inline>>,
    row: Vec<Vec<Inline>>,
}

impl<'a> Page<'a> {
    fn new(roff: &'a mut Roff) -> Self {
        Self {
            roff,
            line: Vec::new(),
            font: roman,
            lists: 0,
            opens_item: false,
            is_code_block: false,
            is_section_heading: false,
            follows_block: false,
            head: Vec::new(),
            row: Vec::new(),
        }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.is_code_block => self.code_lines(&text),
            Event::Text(text) if self.is_section_heading => {
                self.line.push(roman(text.to_uppercase()));
            }
            Event::Text(text) => self.line.push((self.font)(text.into_string())),
            Event::Code(text) => self.line.push(bold(text.into_string())),
            Event::SoftBreak | Event::HardBreak => self.line.push(roman("\n")),
            // Comments name constants, and nothing else is written in HTML.
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => self.is_section_heading = *level == HeadingLevel::H2,
            Tag::Emphasis => self.font = italic,
            Tag::Strong => self.font = bold,
            Tag::CodeBlock(_) => {
                self.is_code_block = true;
                self.part();
                self.roff.control("RS", ["4"]).control("nf", []);
            }
            Tag::List(_) => {
                // The item that holds this list has no paragraph of its own.
                self.paragraph();
                if self.lists > 0 {
                    self.roff.control("RS", ["4"]);
                }
                self.lists += 1;
            }
            Tag::Item => {
                self.roff.control("IP", ["\\(bu", "2"]);
                (self.opens_item, self.follows_block) = (true, true);
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => self.heading(level),
            TagEnd::Paragraph | TagEnd::Item => self.paragraph(),
            TagEnd::Emphasis | TagEnd::Strong => self.font = roman,
            TagEnd::CodeBlock => {
                self.is_code_block = false;
                self.roff.control("fi", []).control("RE", []);
            }
            TagEnd::List(_) => {
                self.lists -= 1;
                if self.lists > 0 {
                    self.roff.control("RE", []);
                }
            }
            TagEnd::TableCell => self.row.push(mem::take(&mut self.line)),
            TagEnd::TableHead => self.head = mem::take(&mut self.row),
            TagEnd::TableRow => self.table_row(),
            _ => {}
        }
    }

    /// The title is left out: the page has its own.
    fn heading(&mut self, level: HeadingLevel) {
        let line = mem::take(&mut self.line);
        self.follows_block = false;
        match level {
            HeadingLevel::H1 => {}
            HeadingLevel::H2 => {
                self.is_section_heading = false;
                self.roff.control("SH", []).text(line);
            }
            _ => {
                self.roff.control("SS", []).text(line);
            }
        }
    }

    fn paragraph(&mut self) {
        let line = mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        let opens_item = mem::take(&mut self.opens_item);
        if self.lists == 0 {
            self.part();
        } else if !opens_item {
            self.roff.control("IP", ["", "2"]);
        }
        self.roff.text(line);
    }

    fn part(&mut self) {
        if mem::replace(&mut self.follows_block, true) {
            self.roff.control("PP", []);
        }
    }

    fn code_lines(&mut self, text: &str) {
        for line in text.lines() {
            self.roff.text([roman(line)]);
        }
    }

    /// The first cell as a tag and the others as its text, those after the second under their
    /// heads.
    fn table_row(&mut self) {
        let row = mem::take(&mut self.row);
        let mut text = Vec::new();
        for (index, cell) in row.iter().enumerate().skip(1) {
            if index > 1 {
                text.push(roman("; "));
                text.extend(self.head.get(index).cloned().unwrap_or_default());
                text.push(roman(": "));
            }
            text.extend(cell.iter().cloned());
        }
        self.follows_block = true;
        self.roff.control("TP", []).text(row.first().cloned().unwrap_or_default()).text(text);
    }
}
