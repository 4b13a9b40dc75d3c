//! Just enough Rust to tell code from prose.

/// The text with every comment blanked, and the content of every string and character literal too.
/// Lines and columns stay where they were.
pub fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_prose(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// The end of the comment or literal that starts at `at`; `at` itself if none starts there.
fn end_of_prose(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => at + chars[at..].iter().take_while(|&&c| c != '\n').count(),
        '/' if next == Some('*') => end_of_block_comment(chars, at),
        '"' => end_of_quoted(chars, at, '"'),
        'r' | 'b' | 'c' if at == 0 || !is_ident(chars[at - 1]) => end_of_prefixed(chars, at),
        '\'' => end_of_char(chars, at),
        _ => at,
    }
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn end_of_quoted(chars: &[char], start: usize, quote: char) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `r"…"`, `r#"…"#`, `b"…"`, `br#"…"#`, `c"…"`, `b'…'`.
fn end_of_prefixed(chars: &[char], start: usize) -> usize {
    let mut at = start;
    while at < chars.len() && at - start < 2 && matches!(chars[at], 'r' | 'b' | 'c') {
        at += 1;
    }
    let is_raw = chars[at - 1] == 'r';
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    match chars.get(at + hashes) {
        Some('"') if is_raw => {
            let close: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let close: Vec<char> = close.chars().collect();
            let body = at + hashes + 1;
            chars[body..].windows(close.len()).position(|w| w == close).map_or(chars.len(), |p| body + p + close.len())
        }
        Some('"') if hashes == 0 => end_of_quoted(chars, at, '"'),
        Some('\'') if hashes == 0 && at == start + 1 && chars[start] == 'b' => end_of_quoted(chars, at, '\''),
        _ => start,
    }
}

/// `'x'` and `'\n'` are literals; `'a` in `&'a str` is a lifetime.
fn end_of_char(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => end_of_quoted(chars, at, '\''),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

pub fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` holds `pattern` and not merely a longer word around it: `std::io` is not in `std::iota`.
pub fn has_word(text: &str, pattern: &str) -> bool {
    let starts_word = pattern.starts_with(is_ident);
    let ends_word = pattern.ends_with(is_ident);
    text.match_indices(pattern).any(|(at, _)| {
        let open = !starts_word || !text[..at].ends_with(is_ident);
        let close = !ends_word || !text[at + pattern.len()..].starts_with(is_ident);
        open && close
    })
}

/// Every path that code imports, written out in full with its line: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
pub fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use") {
        let rest = &code[at + "use".len()..];
        let is_keyword = !code[..at].ends_with(is_ident) && rest.starts_with(char::is_whitespace);
        if is_keyword {
            let line = 1 + code[..at].matches('\n').count();
            expand(rest.split(';').next().unwrap_or(rest), line, &mut found);
        }
    }
    found
}

fn expand(tree: &str, mut line: usize, found: &mut Vec<(usize, String)>) {
    let mut prefixes: Vec<String> = Vec::new();
    let mut path = String::new();
    let mut path_line = line;
    let mut in_alias = false;
    let mut chars = tree.chars().chain([',']).peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' => prefixes.push(path.clone()),
            ',' | '}' => {
                let prefix = prefixes.last().map_or("", String::as_str);
                if path.len() > prefix.len() {
                    found.push((path_line, path));
                }
                if c == '}' {
                    prefixes.pop();
                }
                path = prefixes.last().cloned().unwrap_or_default();
                in_alias = false;
            }
            c if c.is_whitespace() => {
                line += usize::from(c == '\n');
                // Inside a path there is no space, except before `as`.
                in_alias |= path.ends_with(is_ident) && chars.peek() == Some(&'a');
            }
            c if !in_alias => {
                path.push(c);
                path_line = line;
            }
            _ => {}
        }
    }
}

/// The line, from 1, where the inline `#[cfg(test)] mod … {` begins. Whatever follows it is test code.
pub fn first_test_line(code: &str) -> Option<usize> {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let opens_tests = |at: usize| {
        let item = lines[at + 1..].iter().find(|line| !line.is_empty() && !line.starts_with("#["));
        item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
    };
    (0..lines.len()).find(|&at| lines[at] == "#[cfg(test)]" && opens_tests(at)).map(|at| at + 1)
}

/// A file that holds nothing but tests.
pub fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_blanked_and_code_stays() {
        // What is left of the text, its blanks squeezed out.
        let table = [
            ("a // b\nc", "a\nc"),
            ("a /* b /* c */\n d */ e", "a\ne"),
            ("/// doc\nfn f() {}", "\nfnf(){}"),
            (r#"f("a \" // b") + g"#, "f()+g"),
            ("r#\"a\"b\"# x", "x"),
            ("br\"a\" b'\\'' c\"z\" x", "x"),
            ("'\"' 'a' '\\'' x", "x"),
            ("&'a str, var\"s\"", "&'astr,var"),
            ("r#type b r", "r#typebr"),
            ("\"never closed", ""),
        ];
        for (text, want) in table {
            let code = code(text);
            assert_eq!(code.replace(' ', ""), want, "{text}");
            assert_eq!(code.chars().count(), text.chars().count(), "columns moved: {text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("use std::io;", "std::io"));
        assert!(has_word("std::io::Read", "std::io"));
        assert!(!has_word("std::iota", "std::io"));
        assert!(!has_word("mystd::io", "std::io"));
        assert!(!has_word("eprintln!()", "println!"));
        assert!(has_word("std::iota + std::io", "std::io"));
    }

    #[test]
    fn imports_are_written_out_with_their_lines() {
        let code = "use a::b;\npub use std::{\n    fs as f,\n    collections::{HashMap, *},\n    io,\n};\nlet user = 1;\nuse x as y;";
        let found: Vec<(usize, String)> = imports(code);
        let want = [
            (1, "a::b"),
            (3, "std::fs"),
            (4, "std::collections::HashMap"),
            (4, "std::collections::*"),
            (5, "std::io"),
            (8, "x"),
        ];
        assert_eq!(found, want.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn only_an_inline_test_module_begins_the_tests() {
        assert_eq!(first_test_line("fn f() {}\n#[cfg(test)]\nmod tests {\n}"), Some(2));
        assert_eq!(first_test_line("#[cfg(test)]\n#[path = \"\"]\nmod tests {"), Some(1));
        assert_eq!(first_test_line("#[cfg(test)]\nmod tests;\nfn f() {}"), None);
        assert_eq!(first_test_line("#[cfg(test)]\nfn f() {}\nmod tests {\n}"), None);
        assert_eq!(first_test_line("#[cfg(test)]"), None);
    }

    #[test]
    fn test_files_are_known_by_their_place() {
        assert!(is_test_file("core/tests/chaos.rs"));
        assert!(is_test_file("core/src/lease/tests.rs"));
        assert!(!is_test_file("core/src/lease.rs"));
    }
}
