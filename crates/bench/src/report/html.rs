//! A report as one page of XHTML without scripts, which needs no other files.

use super::document::{Block, Cell, document};
use super::escaped;
use crate::results::Results;

/// The page. The other subjects are compared with `peers`; without any, each one with the best
/// other one.
#[must_use]
pub fn page(results: &Results, peers: &[String]) -> String {
    let blocks = document(results, peers);
    let title = blocks.iter().find_map(|block| match block {
        Block::Heading(1, title) => Some(escaped(title)),
        _ => None,
    });
    let title = title.unwrap_or_default();
    let mut body = String::new();
    write(&blocks, &mut Anchors(0), &mut body);
    let body = body.replacen("</h1>\n", &format!("</h1>\n{}", contents(&blocks)), 1);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        include_str!("page.css")
    )
}

/// Numbers the phases.
struct Anchors(u32);

impl Anchors {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("p{}", self.0)
    }
}

/// Links to the phases of each run, if there are several.
fn contents(blocks: &[Block]) -> String {
    let mut anchors = Anchors(0);
    let mut out = String::new();
    for block in blocks {
        match block {
            Block::Heading(2, run) => out.push_str(&format!("</p>\n<p>{}:", escaped(run))),
            Block::Heading(3, phase) => {
                let anchor = anchors.next();
                out.push_str(&format!(" <a href=\"#{anchor}\">{}</a>", escaped(phase)));
            }
            _ => {}
        }
    }
    if anchors.0 < 2 { String::new() } else { format!("<nav><p>{out}</p></nav>\n") }
}

fn write(blocks: &[Block], anchors: &mut Anchors, out: &mut String) {
    for block in blocks {
        let text = match block {
            Block::Heading(3, text) => {
                format!("<h3 id=\"{}\">{}</h3>\n", anchors.next(), escaped(text))
            }
            Block::Heading(level, text) => format!("<h{level}>{}</h{level}>\n", escaped(text)),
            Block::Paragraph(text) => format!("<p>{}</p>\n", escaped(text)),
            Block::Loud(text) => format!("<p class=\"loud\">{}</p>\n", escaped(text)),
            Block::Code(name, text) => format!("<p>{name}: <code>{}</code></p>\n", escaped(text)),
            Block::Items(items) => {
                let items = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item)));
                format!("<ul>\n{}</ul>\n", items.collect::<String>())
            }
            Block::Table { header, rows } => table(header, rows),
            Block::Fold(summary, blocks) => {
                let mut inside = String::new();
                write(blocks, anchors, &mut inside);
                let summary = escaped(summary);
                format!("<details><summary>{summary}</summary>\n{inside}</details>\n")
            }
            Block::Plot(plot) => {
                let caption = escaped(&plot.caption);
                format!("<figure>\n{}<figcaption>{caption}</figcaption>\n</figure>\n", plot.svg)
            }
        };
        out.push_str(&text);
    }
}

fn table(header: &[String], rows: &[Vec<Cell>]) -> String {
    let head: String = header.iter().map(|text| format!("<th>{}</th>", escaped(text))).collect();
    let cell = |cell: &Cell| match (escaped(&cell.text), cell.loud) {
        (text, true) => format!("<td class=\"worse\">{text}</td>"),
        (text, false) => format!("<td>{text}</td>"),
    };
    let row = |row: &Vec<Cell>| format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>());
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"table\"><table>\n<tr>{head}</tr>\n{rows}</table></div>\n")
}
