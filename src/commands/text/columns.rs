//! Names side by side, down and then across, as `ls` fills a terminal.

/// The names in as few lines as `line_width` letters allow, two spaces between the columns.
pub(crate) fn fill(names: &[String], line_width: usize) -> String {
    let widths: Vec<usize> = names.iter().map(|name| width(name)).collect();
    let rows = rows(&widths, line_width);
    let columns: Vec<usize> =
        widths.chunks(rows).map(|column| column.iter().copied().max().unwrap_or(0) + GAP).collect();
    let mut text = String::new();
    for row in 0..rows.min(names.len()) {
        for (column, column_width) in columns.iter().enumerate() {
            let index = column * rows + row;
            let Some(name) = names.get(index) else { break };
            text.push_str(name);
            if index + rows < names.len() {
                let padding = column_width - widths[index];
                text.extend(std::iter::repeat_n(' ', padding));
            }
        }
        text.push('\n');
    }
    text
}

/// The smallest number of rows with which every column fits, at least 1.
fn rows(widths: &[usize], line_width: usize) -> usize {
    if widths.is_empty() {
        return 1;
    }
    let columns_max = line_width.div_ceil(COLUMN_WIDTH_MIN).clamp(1, widths.len());
    for columns in (1..=columns_max).rev() {
        let rows = widths.len().div_ceil(columns);
        let last = widths.len().div_ceil(rows) - 1;
        let widths = widths.chunks(rows).enumerate().map(|(index, column)| {
            let width = column.iter().copied().max().unwrap_or(0);
            COLUMN_WIDTH_MIN.max(if index < last { width + GAP } else { width })
        });
        // The line must stay shorter than the terminal is wide: a letter in the last place makes
        // some terminals begin a line of their own.
        let line: usize = widths.sum();
        if line < line_width {
            return rows;
        }
    }
    widths.len()
}

/// Places that the text takes on a terminal, where every character takes one. Wide ones take two;
/// then columns are not straight, and nothing else is wrong.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

const GAP: usize = 2;
/// The least width of a column, also of the last one, as in coreutils.
const COLUMN_WIDTH_MIN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(names: &[&str], line_width: usize) -> String {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        fill(&names, line_width)
    }

    /// As `ls -C -T0 -w` of coreutils 9.1 does.
    #[test]
    fn columns_go_down_and_then_across() {
        let names = ["a", "bb", "ccc", "d", "e"];
        assert_eq!(filled(&names, 80), "a  bb  ccc  d  e\n");
        assert_eq!(filled(&names, 19), "a  bb  ccc  d  e\n");
        assert_eq!(filled(&names, 18), "a   ccc  e\nbb  d\n");
        assert_eq!(filled(&names, 16), "a   ccc  e\nbb  d\n");
        assert_eq!(filled(&names, 9), "a    d\nbb   e\nccc\n");
        assert_eq!(filled(&names, 1), "a\nbb\nccc\nd\ne\n");
        assert_eq!(filled(&[], 80), "");
        assert_eq!(filled(&["much too long"], 4), "much too long\n");
    }
}
