//! What looks done is done: nothing unfinished, nothing skipped, nothing that waits for luck.

use super::{File, Finding, rust, source};

const EVERYWHERE: &[(&str, &str)] = &[
    ("todo!", "finish it, or return an error that says what is not supported"),
    ("unimplemented!", "finish it, or return an error that says what is not supported"),
    ("#[ignore", "repair the test or remove it: a test that never runs guards nothing"),
];

const IN_TESTS: (&str, &str) = ("thread::sleep", "inject the time, or wait for the event itself");

pub fn check(files: &[File]) -> Vec<Finding> {
    rust(files).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = source::code(&file.text);
    let tests_from = if source::is_test_file(&file.path) { Some(1) } else { source::first_test_line(&code) };
    let lines = code.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned()));
    let mut hits: Vec<(usize, &str, &str)> = Vec::new();
    for (line, text) in lines.chain(source::imports(&code)) {
        let is_test = tests_from.is_some_and(|from| line >= from);
        let rules = EVERYWHERE.iter().chain(is_test.then_some(&IN_TESTS));
        let broken = rules.filter(|(pattern, _)| source::has_word(&text, pattern));
        hits.extend(broken.map(|&(pattern, remedy)| (line, pattern, remedy)));
    }
    hits.sort_unstable();
    hits.dedup();
    hits.into_iter()
        .map(|(line, pattern, remedy)| Finding { path: file.path.clone(), line, what: format!("`{pattern}`"), remedy })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn lines_found(path: &str, text: &str) -> Vec<usize> {
        check(&[file(path, text)]).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_code_and_ignored_tests_are_found_everywhere() {
        for path in ["core/src/a.rs", "core/tests/a.rs"] {
            assert_eq!(lines_found(path, "fn f() {\n    todo!()\n}"), [2]);
            assert_eq!(lines_found(path, "fn f() {\n    unimplemented!(\"x\")\n}"), [2]);
            assert_eq!(lines_found(path, "#[test]\n#[ignore]\nfn t() {}"), [2]);
            assert_eq!(lines_found(path, "#[test]\n#[ignore = \"slow\"]\nfn t() {}"), [2]);
        }
    }

    #[test]
    fn tests_that_sleep_are_found_and_code_that_sleeps_is_not() {
        let sleeps = "fn f() { std::thread::sleep(d) }\n";
        assert_eq!(lines_found("node/src/a.rs", sleeps), [0_usize; 0]);
        assert_eq!(lines_found("node/tests/a.rs", sleeps), [1]);
        assert_eq!(lines_found("node/src/a.rs", &format!("{sleeps}#[cfg(test)]\nmod tests {{\n{sleeps}}}")), [4]);
        assert_eq!(lines_found("node/tests/a.rs", "use std::{\n    thread::{self, sleep},\n};"), [2]);
    }

    #[test]
    fn prose_is_left_alone() {
        assert_eq!(lines_found("a.rs", "// todo!() is banned\nlet x = \"#[ignore]\";\n#[ignored]"), [0_usize; 0]);
    }
}
