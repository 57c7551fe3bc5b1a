//! Tables in text.

/// Rows with every column as wide as its widest cell: the first to the left, the others to the
/// right, but for the columns from `left_from` on.
pub(super) fn table(rows: &[Vec<String>], left_from: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 || column >= left_from {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A row of a table.
pub(super) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [row(["name", "calls", "what"]), row(["a", "10000", "b"])];
        assert_eq!(table(&rows, 2), "name  calls  what\na     10000  b\n");
    }
}
