//! Core decides and does nothing else. Its tests are held to the same, or they would not be the same run twice.
//!
//! A scan of the text, not of types: it cannot see through a macro or a re-export, and the list of core's
//! dependencies (see [`super::crates`]) closes most of what is left.

use super::{File, Finding, rust, source};

const CLOCK: &str = "core is told the time: take `now` as an argument";
const RANDOM: &str = "core gets its randomness from outside: take a seeded generator as an argument";
const ORDER: &str =
    "its order differs from run to run: use BTreeMap, BTreeSet, or hashbrown with foldhash's FixedState";
const IO: &str = "core does no I/O: describe it as an effect, and let the shell do it";
const CONCURRENCY: &str = "core is single-threaded and synchronous: make it an input or an effect";

const BANNED: &[(&str, &str)] = &[
    ("Instant::now", CLOCK),
    ("SystemTime", CLOCK),
    ("now_v7", CLOCK),
    ("thread_rng", RANDOM),
    ("rand::rng", RANDOM),
    ("rand::random", RANDOM),
    ("OsRng", RANDOM),
    ("SysRng", RANDOM),
    ("from_os_rng", RANDOM),
    ("new_v4", RANDOM),
    ("RandomState", ORDER),
    ("collections::HashMap", ORDER),
    ("collections::HashSet", ORDER),
    ("collections::hash_map", ORDER),
    ("collections::hash_set", ORDER),
    ("collections::*", ORDER),
    ("std::fs", IO),
    ("std::net", IO),
    ("std::io", IO),
    ("std::env", IO),
    ("std::process", IO),
    ("print!", IO),
    ("println!", IO),
    ("eprint!", IO),
    ("eprintln!", IO),
    ("std::thread", CONCURRENCY),
    ("tokio", CONCURRENCY),
    ("async", CONCURRENCY),
];

pub fn check(files: &[File]) -> Vec<Finding> {
    rust(files).filter(|file| file.path.starts_with("core/src/")).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = source::code(&file.text);
    let lines = code.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned()));
    let mut hits: Vec<(usize, &str, &str)> = Vec::new();
    for (line, text) in lines.chain(source::imports(&code)) {
        let on_line = BANNED.iter().filter(|(pattern, _)| source::has_word(&text, pattern));
        hits.extend(on_line.map(|&(pattern, remedy)| (line, pattern, remedy)));
    }
    hits.sort_unstable();
    hits.dedup();
    hits.into_iter()
        .map(|(line, pattern, remedy)| Finding {
            path: file.path.clone(),
            line,
            what: format!("`{pattern}` in core"),
            remedy,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn lines_found(text: &str) -> Vec<usize> {
        check(&[file("core/src/a.rs", text)]).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_banned_thing_is_found() {
        for (pattern, remedy) in BANNED {
            let found = check(&[file("core/src/a.rs", &format!("fn f() {{\n    {pattern} \n}}"))]);
            assert_eq!(found.len(), 1, "{pattern}: {found:?}");
            assert_eq!((found[0].line, found[0].remedy), (2, *remedy));
        }
    }

    #[test]
    fn imports_in_groups_are_found() {
        assert_eq!(lines_found("use std::{\n    cmp::Ordering,\n    fs,\n};"), [3]);
        assert_eq!(lines_found("use std::collections::{BTreeMap, HashMap};"), [1]);
        assert_eq!(lines_found("use std::{collections::*, fmt};"), [1]);
        assert_eq!(lines_found("use std::{io as x};"), [1]);
        assert_eq!(lines_found("use rand::{Rng, rng};"), [1]);
    }

    #[test]
    fn test_code_is_scanned_too() {
        assert_eq!(lines_found("#[cfg(test)]\nmod tests {\n    use std::thread;\n}"), [3]);
    }

    #[test]
    fn prose_and_what_core_may_use_are_left_alone() {
        let fine = "//! No tokio, no std::fs.\n/* SystemTime */\nuse hashbrown::HashMap;\nuse std::collections::BTreeMap;\n\
                    use rand::rngs::SmallRng;\nconst WHY: &str = \"println! and std::io\";\nuse core::{fmt, time::Duration};";
        assert_eq!(lines_found(fine), [0_usize; 0]);
    }

    #[test]
    fn only_core_is_held_to_it() {
        assert!(check(&[file("node/src/a.rs", "use std::fs;"), file("core/tests/a.rs", "use std::env;")]).is_empty());
    }
}
