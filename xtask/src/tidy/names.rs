//! Public names use the words of the glossary.

use super::{File, Finding, rust, source};

/// Words that the glossary replaces, or that name nothing, each with what to write.
///
/// Not every word of the glossary's "not" column is here. `request`, `run`, `try`, `type`, `function`, `server`,
/// `host`, `lock`, `version`, `status`, `step`, `handle`, `update`, `result` and the like are ordinary English or
/// Rust, and right in many names. The words below have no such second use here.
const BANNED: &[(&str, &str)] = &[
    ("task", "say `job` (what a client submits), `workflow` (its unit) or `attempt` (one execution)"),
    ("subtask", "say `workflow`"),
    ("processor", "say `handler`"),
    ("master", "say `gate`, `manager` or `leader`"),
    ("visibility", "say `lease`"),
    ("keepalive", "say `beat` (the handler is active) or `probe` (the node answers)"),
    ("audit", "say `ledger`"),
    ("helper", "name what it does"),
    ("util", "name what it does"),
    ("coordinator", "name what it decides"),
];

const MANAGER: &str = "`Manager` is the role and comes first in its names; say what this one does";

pub fn check(files: &[File]) -> Vec<Finding> {
    rust(files).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = source::code(&file.text);
    let mut findings = Vec::new();
    for (at, line) in code.lines().enumerate() {
        for name in public_names(line) {
            if let Some(remedy) = remedy(name) {
                findings.push(Finding { path: file.path.clone(), line: at + 1, what: format!("`{name}`"), remedy });
            }
        }
    }
    findings
}

fn remedy(name: &str) -> Option<&'static str> {
    let words = words(name);
    for word in &words {
        let singular = word.strip_suffix('s').unwrap_or(word);
        if let Some((_, remedy)) = BANNED.iter().find(|(banned, _)| banned == word || *banned == singular) {
            return Some(remedy);
        }
    }
    // `managers` in a function or field counts the role's nodes; a type `LeaseManager` names nothing.
    let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let is_late_manager = words.iter().skip(1).any(|word| word.trim_end_matches('s') == "manager");
    (is_type && is_late_manager && !name.starts_with("Manager")).then_some(MANAGER)
}

/// The names that a line declares with `pub`: items, fields, and what is `pub` for a part of the crate only.
fn public_names(line: &str) -> Vec<&str> {
    let starts = line.match_indices("pub").filter(|&(at, _)| {
        !line[..at].ends_with(source::is_ident)
            && !line[at + 3..].starts_with(source::is_ident)
            && !line[..at].ends_with("r#")
    });
    starts.filter_map(|(at, _)| name_after_pub(&line[at + 3..])).collect()
}

fn name_after_pub(rest: &str) -> Option<&str> {
    let mut rest = rest.trim_start();
    if rest.starts_with('(') {
        rest = rest.split_once(')')?.1.trim_start();
    }
    let mut is_item = false;
    loop {
        let word = &rest[..rest.find(|c| !source::is_ident(c)).unwrap_or(rest.len())];
        let after = rest[word.len()..].trim_start();
        match word {
            "" | "use" => return None,
            "fn" | "struct" | "enum" | "union" | "trait" | "const" | "static" | "type" | "mod" | "async" | "unsafe"
            | "extern" | "mut" => is_item = true,
            "r" if after.starts_with('#') => {
                rest = &after[1..];
                continue;
            }
            name => return (is_item || (after.starts_with(':') && !after.starts_with("::"))).then_some(name),
        }
        rest = after;
    }
}

/// `LeaseHTTPProbe` and `lease_http_probe` are both lease, http, probe.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &c) in chars.iter().enumerate() {
        let after_lower = at > 0 && !chars[at - 1].is_uppercase();
        let before_lower = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        if c == '_' || (c.is_uppercase() && (after_lower || before_lower)) {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("never empty").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn is_refused(line: &str) -> bool {
        !check(&[file("core/src/a.rs", line)]).is_empty()
    }

    #[test]
    fn each_banned_word_is_found_as_a_word_of_a_public_name() {
        for (word, remedy) in BANNED {
            let camel = format!("{}{}", word[..1].to_uppercase(), &word[1..]);
            for line in [
                format!("pub struct Lease{camel};"),
                format!("    pub(crate) const fn next_{word}(&self) {{}}"),
                format!("pub mod {word}s;"),
                format!("    pub {word}_id: u64,"),
                format!("pub const MAX_{}: u32 = 1;", word.to_uppercase()),
                format!("pub async fn {word}() {{}}"),
            ] {
                let found = check(&[file("core/src/a.rs", &line)]);
                assert_eq!(found.len(), 1, "{line}");
                assert_eq!(found[0].remedy, *remedy, "{line}");
            }
        }
    }

    #[test]
    fn longer_words_private_names_and_prose_are_left_alone() {
        for line in [
            "pub fn multitasking() {}",
            "pub mod xtask;",
            "fn task() {}",
            "// pub struct Task;",
            "pub fn f(task: u32) {}",
            "pub use tokio::task;",
            "pub struct Wrapper(pub tokio::task::Id);",
            "publish_task: u32,",
        ] {
            assert!(!is_refused(line), "{line}");
        }
    }

    #[test]
    fn manager_is_the_role() {
        for line in ["pub struct Manager {", "pub enum ManagerInput {", "pub mod manager;", "pub live_managers: u32,"] {
            assert!(!is_refused(line), "{line}");
        }
        assert!(is_refused("pub struct LeaseManager;"));
        assert!(is_refused("pub trait TimeoutManagers {}"));
    }

    #[test]
    fn names_fall_into_words() {
        assert_eq!(words("LeaseHTTPProbe"), ["lease", "http", "probe"]);
        assert_eq!(words("MAX_OPEN_LEASES"), ["max", "open", "leases"]);
        assert_eq!(words("_beat2Next"), ["beat2", "next"]);
    }
}
