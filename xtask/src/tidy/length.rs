//! Files stay short enough to be read in one sitting.

use super::{File, Finding, rust, source};

/// Past this a file is named in the report.
const LONG: usize = 400;
/// Past this the check fails.
const TOO_LONG: usize = 600;

pub fn check(files: &[File]) -> Vec<Finding> {
    let finding = |(file, lines): (&File, usize)| Finding {
        path: file.path.clone(),
        line: TOO_LONG + 1,
        what: format!("{lines} lines without tests, and {TOO_LONG} is the most"),
        remedy: "split it where the subject changes",
    };
    lengths(files).filter(|&(_, lines)| lines > TOO_LONG).map(finding).collect()
}

/// The files that are getting long, the longest first.
pub fn report(files: &[File]) -> Vec<String> {
    let mut long: Vec<_> = lengths(files).filter(|&(_, lines)| lines > LONG).collect();
    long.sort_by_key(|&(_, lines)| std::cmp::Reverse(lines));
    let told = |(file, lines): (&File, usize)| format!("{}: {lines} lines without tests, aim at {LONG}", file.path);
    long.into_iter().map(told).collect()
}

fn lengths(files: &[File]) -> impl Iterator<Item = (&File, usize)> {
    rust(files).filter(|file| !source::is_test_file(&file.path)).map(|file| (file, lines_without_tests(&file.text)))
}

fn lines_without_tests(text: &str) -> usize {
    match source::first_test_line(&source::code(text)) {
        Some(line) => line - 1,
        None => text.lines().count(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn long(path: &str, lines: usize, test_lines: usize) -> File {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    fn t() {}\n".repeat(test_lines));
        file(path, &format!("{}{tests}", "fn f() {}\n".repeat(lines)))
    }

    #[test]
    fn too_long_fails_and_the_limit_itself_does_not() {
        assert_eq!(check(&[long("a.rs", TOO_LONG + 1, 0)]).len(), 1);
        assert!(check(&[long("a.rs", TOO_LONG, 0)]).is_empty());
        let without_tests = file("a.rs", &"fn f() {}\n".repeat(TOO_LONG + 1));
        assert_eq!(check(&[without_tests]).len(), 1);
    }

    #[test]
    fn long_is_reported_longest_first() {
        let report = report(&[long("a.rs", LONG + 1, 0), long("b.rs", LONG + 9, 0), long("c.rs", LONG, 0)]);
        assert_eq!(report.len(), 2);
        assert!(report[0].starts_with("b.rs: 409 lines"), "{report:?}");
    }

    #[test]
    fn tests_do_not_count() {
        assert!(check(&[long("a.rs", 3, 2 * TOO_LONG)]).is_empty());
        assert!(check(&[long("core/tests/a.rs", 2 * TOO_LONG, 0), long("core/src/tests.rs", 700, 0)]).is_empty());
    }
}
