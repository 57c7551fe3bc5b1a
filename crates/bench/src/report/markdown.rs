//! A report as Markdown.

use super::document::{Block, Cell, document};
use crate::numeral::{plain, wrapped};
use crate::results::Results;
use crate::table::COLUMNS;

/// The text of a report without its plots. The other subjects are compared with `peers`; without
/// any, each one with the best other one.
#[must_use]
pub fn markdown(results: &Results, peers: &[String]) -> String {
    let mut out = String::new();
    write(&document(results, peers), &mut out);
    out.trim_start().into()
}

fn write(blocks: &[Block], out: &mut String) {
    for block in blocks {
        match block {
            Block::Heading(level, text) => {
                let marks = "#".repeat((*level).into());
                out.push_str(&format!("\n{marks} {}\n", escaped(text)));
            }
            Block::Paragraph(text) => paragraph(&escaped(text), out),
            Block::Loud(text) => paragraph(&format!("**{}**", escaped(text)), out),
            Block::Code(name, text) => {
                paragraph(&format!("{name}: `{}`", text.replace('`', "'")), out);
            }
            Block::Items(items) => {
                out.push('\n');
                for item in items {
                    let lines = wrapped(&escaped(item), "  ", COLUMNS);
                    out.push_str(&format!("{}\n", lines.replacen("  ", "- ", 1)));
                }
            }
            Block::Table { header, rows } => table(header, rows, out),
            Block::Fold(_, blocks) => write(blocks, out),
            Block::Plot(_) => {}
        }
    }
}

fn paragraph(text: &str, out: &mut String) {
    out.push_str(&format!("\n{}\n", wrapped(text, "", COLUMNS)));
}

fn table(header: &[String], rows: &[Vec<Cell>], out: &mut String) {
    let cell = |cell: &Cell| {
        let text = escaped(&cell.text);
        if cell.loud { format!("**{text}**") } else { text }
    };
    let header: Vec<_> = header.iter().map(|text| escaped(text)).collect();
    let rule = vec!["---".to_owned(); header.len()];
    let rows = rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>());
    out.push('\n');
    for row in [header, rule].into_iter().chain(rows) {
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
}

/// Text from records without what Markdown or HTML would read as markup.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in plain(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '`' => out.push_str("&#96;"),
            '|' | '*' | '[' | ']' | '\\' | '#' | '!' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
