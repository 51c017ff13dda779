/// Aligns rows in columns: the columns in `texts` to the left, the others to the right.
pub(super) fn aligned(cells: &[Vec<String>], texts: &[usize]) -> Vec<String> {
    let columns = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let line = |row: &Vec<String>| {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, width))| {
                    if texts.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}
