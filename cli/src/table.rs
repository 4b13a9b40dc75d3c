//! A table that fits the terminal: long texts are cut there, and columns that matter least left out. Elsewhere it is
//! written in full, for other programs to cut.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::screen::one_line;

/// Spaces between two columns.
const GAP: usize = 2;
/// The width that a text needs to say something: columns are left out to give it this much.
const ENOUGH: usize = 24;
/// The least width of a text, where there is nothing more to leave out.
const SHORTEST: usize = 10;
const CUT: &str = "…";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    name: &'static str,
    fit: Fit,
}

/// The fate of a column where there is too little space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fit {
    /// Nothing: ids are for copying, and half a number is another one.
    Whole,
    /// Texts of the column are cut.
    Cut,
    /// The column is left out; the last such column first.
    Optional,
}

impl Column {
    pub const fn whole(name: &'static str) -> Self {
        Self { name, fit: Fit::Whole }
    }

    pub const fn cut(name: &'static str) -> Self {
        Self { name, fit: Fit::Cut }
    }

    pub const fn optional(name: &'static str) -> Self {
        Self { name, fit: Fit::Optional }
    }

    pub const fn name(self) -> &'static str {
        self.name
    }

    fn has_colour(self) -> bool {
        matches!(self.name, "state" | "verdict" | "outcome" | "health")
    }
}

pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
}

/// A piece of a line, padded.
#[derive(PartialEq, Eq, Debug)]
pub struct Cell {
    pub text: String,
    pub has_colour: bool,
}

impl TextTable {
    pub fn new(columns: &[Column], rows: Vec<Vec<String>>, width: Option<usize>) -> Self {
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().map(harmless).collect()).collect();
        let widest = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|text| text.width());
            cells.chain([columns[at].name.len()]).max().unwrap_or(0)
        };
        let mut table = Self { columns: columns.to_vec(), widths: (0..columns.len()).map(widest).collect(), rows };
        if let Some(width) = width {
            table.fit(width);
        }
        table
    }

    fn total_of(widths: &[usize]) -> usize {
        widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
    }

    fn fit(&mut self, width: usize) {
        while Self::total_of(&self.narrowed(ENOUGH)) > width {
            let Some(least) = self.columns.iter().rposition(|column| column.fit == Fit::Optional) else { break };
            self.columns.remove(least);
            self.widths.remove(least);
            self.rows.iter_mut().for_each(|row| drop(row.remove(least)));
        }
        let shortest = self.narrowed(SHORTEST);
        // The widest gives first, so that short texts stay whole.
        while Self::total_of(&self.widths) > width {
            let cuttable = (0..self.columns.len()).filter(|&at| self.columns[at].fit == Fit::Cut);
            let widest = cuttable.filter(|&at| self.widths[at] > shortest[at]).max_by_key(|&at| self.widths[at]);
            let Some(widest) = widest else { break };
            self.widths[widest] -= 1;
        }
    }

    /// The widths of the columns if texts are cut to this.
    fn narrowed(&self, to: usize) -> Vec<usize> {
        let cut = |(column, width): (&Column, &usize)| match column.fit {
            Fit::Cut => (*width).min(to.max(column.name.len())),
            Fit::Whole | Fit::Optional => *width,
        };
        self.columns.iter().zip(&self.widths).map(cut).collect()
    }

    /// The head, and then the rows. The last cell of each is not padded.
    pub fn lines(&self) -> impl Iterator<Item = Vec<Cell>> {
        let head = self.columns.iter().map(|column| (column.name.to_uppercase(), false)).collect();
        let rows = self.rows.iter().map(|row| {
            row.iter().zip(&self.columns).map(|(text, column)| (text.clone(), column.has_colour())).collect()
        });
        std::iter::once(head).chain(rows).map(|row: Vec<(String, bool)>| self.line(row))
    }

    fn line(&self, row: Vec<(String, bool)>) -> Vec<Cell> {
        let last = row.len().saturating_sub(1);
        let padded = |(at, (text, has_colour)): (usize, (String, bool))| {
            let mut text = cut(text, self.widths[at]);
            if at < last {
                let missing = self.widths[at].saturating_sub(text.width()) + GAP;
                text.extend(std::iter::repeat_n(' ', missing));
            }
            Cell { text, has_colour }
        };
        row.into_iter().enumerate().map(padded).collect()
    }
}

/// A cell is one line, whoever wrote it.
fn harmless(text: String) -> String {
    one_line(&text).unwrap_or(text)
}

fn cut(text: String, width: usize) -> String {
    if text.width() <= width {
        return text;
    }
    let mut left = width.saturating_sub(CUT.width());
    let mut short = String::new();
    for c in text.chars() {
        let takes = c.width().unwrap_or(0);
        if takes > left {
            break;
        }
        left -= takes;
        short.push(c);
    }
    short + CUT
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] =
        [Column::whole("id"), Column::cut("kind"), Column::optional("queue"), Column::cut("reason")];

    fn lines(rows: &[[&str; 4]], width: Option<usize>) -> Vec<String> {
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let text = |line: Vec<Cell>| line.into_iter().map(|cell| cell.text).collect::<String>();
        TextTable::new(&COLUMNS, rows, width).lines().map(text).collect()
    }

    #[test]
    fn it_is_whole_where_there_is_space() {
        let rows = [["0190b2c4", "resize", "images", "failed: no space left"], ["01", "k", "q", "-"]];
        let whole = [
            "ID        KIND    QUEUE   REASON",
            "0190b2c4  resize  images  failed: no space left",
            "01        k       q       -",
        ];
        assert_eq!(lines(&rows, None), whole);
        assert_eq!(lines(&rows, Some(80)), whole);
        assert_eq!(lines(&rows, Some(47)), whole);
    }

    #[test]
    fn columns_are_left_out_and_texts_are_cut_and_ids_stay_whole() {
        let rows = [["0190b2c4", "a-very-long-kind-indeed", "images", "failed: no space left"]];
        let at = |width| lines(&rows, Some(width))[1].clone();
        assert_eq!(at(64), "0190b2c4  a-very-long-kind-indeed  images  failed: no space left");
        assert_eq!(at(63), "0190b2c4  a-very-long-kind-indeed  failed: no space left");
        assert_eq!(at(50), "0190b2c4  a-very-long-kind-i…  failed: no space l…");
        assert_eq!(at(40), "0190b2c4  a-very-long-k…  failed: no sp…");
        assert_eq!(at(39), "0190b2c4  a-very-long-k…  failed: no s…");
        assert_eq!(at(10), "0190b2c4  a-very-lo…  failed: n…", "there is nothing more to give");
        for width in 32..60 {
            assert!(lines(&rows, Some(width)).iter().all(|line| line.width() <= width), "{width}");
        }
    }

    #[test]
    fn wide_letters_count_twice_and_a_cell_is_one_line() {
        let rows = [["1", "日本語日本語日本語", "q", "a\nb\u{1b}[1m"], ["2", "k", "q", "r"]];
        let wide = lines(&rows, Some(40));
        assert_eq!(wide[1], "1   日本語日本語日本語  a\\nb\\u{1b}[1m");
        assert!(wide.iter().all(|line| line.width() <= 40), "{wide:?}");
    }
}
