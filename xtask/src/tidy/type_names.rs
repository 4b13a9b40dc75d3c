//! The name of a type says one thing: in one crate only, unless it is one idea in several spellings; and a noun.

use std::collections::BTreeMap;

use super::{File, Finding, rust, source};

/// Names that are declared in several crates because they are one idea there.
const ONE_IDEA: &[(&str, &[&str])] = &[
    // The glossary's words: core's record, its JSON, and the handle of whoever embeds us.
    (
        "what the glossary names, in core, as JSON and for users",
        &[
            "Attempt",
            "Beat",
            "Datacenter",
            "Job",
            "JobState",
            "Ledger",
            "Lease",
            "LoopStatus",
            "Node",
            "Outcome",
            "Schedule",
            "Signals",
            "Workflow",
        ],
    ),
    ("the words that every machine is made of", &["Effect", "Input"]),
];

/// Participles that do not end in `-ed`.
const IRREGULAR: &[&str] = &[
    "Begun",
    "Bound",
    "Broken",
    "Built",
    "Chosen",
    "Cut",
    "Done",
    "Drawn",
    "Forgotten",
    "Found",
    "Given",
    "Gone",
    "Heard",
    "Held",
    "Hidden",
    "Kept",
    "Known",
    "Left",
    "Lent",
    "Lost",
    "Made",
    "Met",
    "Put",
    "Read",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Shut",
    "Spent",
    "Stuck",
    "Taken",
    "Told",
    "Understood",
    "Unknown",
    "Unseen",
    "Unwritten",
    "Unproven",
    "Written",
];

/// Words in `-ed` that are nouns, and participles that the contract with users names.
const NOUNS: &[&str] = &["Bed", "Feed", "Need", "Seed", "Speed", "Received", "Spent", "Stopped"];

const PARTICIPLE: &str = "a type is a noun: say what it is (`CommitReply`, not `Told`)";

pub fn check(files: &[File]) -> Vec<Finding> {
    let types: Vec<Type<'_>> = rust(files).flat_map(types_of).collect();
    let mut findings: Vec<Finding> =
        types.iter().filter(|one| is_participle(&one.name)).map(|one| one.finding("", PARTICIPLE)).collect();
    let mut by_name: BTreeMap<&str, Vec<&Type<'_>>> = BTreeMap::new();
    for one in types.iter().filter(|one| one.is_visible && is_product(&one.file.path)) {
        by_name.entry(&one.name).or_default().push(one);
    }
    for (name, of_name) in by_name {
        let first = of_name[0];
        if ONE_IDEA.iter().any(|(_, names)| names.contains(&name)) {
            continue;
        }
        let elsewhere = of_name.iter().filter(|one| crate_of(&one.file.path) != crate_of(&first.file.path));
        let also = format!(", which is also in {}", first.file.path);
        findings.extend(elsewhere.map(|one| {
            one.finding(&also, "give one of them a name of its own, or add it to `ONE_IDEA` with the reason")
        }));
    }
    findings
}

struct Type<'a> {
    file: &'a File,
    line: usize,
    name: String,
    /// Outside its module.
    is_visible: bool,
}

impl Type<'_> {
    fn finding(&self, also: &str, remedy: &'static str) -> Finding {
        Finding { path: self.file.path.clone(), line: self.line, what: format!("type `{}`{also}", self.name), remedy }
    }
}

/// The types that a file declares, those of traits and of their implementations apart.
fn types_of(file: &File) -> Vec<Type<'_>> {
    let code = source::code(&file.text);
    let declared = |(at, line): (usize, &str)| {
        let is_indented = line.starts_with(char::is_whitespace);
        let mut rest = line.trim_start();
        let is_visible = rest.starts_with("pub") && !rest["pub".len()..].starts_with(source::is_ident);
        if is_visible {
            rest = rest["pub".len()..].trim_start();
            if rest.starts_with('(') {
                rest = rest.split_once(')')?.1.trim_start();
            }
        }
        rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
        let (keyword, rest) = rest.split_once(' ')?;
        let is_type = matches!(keyword, "struct" | "enum" | "union" | "trait") || (keyword == "type" && !is_indented);
        let name: String = rest.chars().take_while(|&c| source::is_ident(c)).collect();
        (is_type && name.starts_with(char::is_uppercase)).then_some(Type { file, line: at + 1, name, is_visible })
    };
    code.lines().enumerate().filter_map(declared).collect()
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().filter(|c| c.is_uppercase()).count() == 1;
    let is_regular = name.len() > 3 && name.ends_with("ed");
    is_one_word && (is_regular || IRREGULAR.contains(&name)) && !NOUNS.contains(&name)
}

/// Code that others see, and not tests or examples, which see everything.
fn is_product(path: &str) -> bool {
    let is_test = |part: &str| matches!(part, "tests" | "examples" | "tests.rs") || part.ends_with("_tests.rs");
    !path.split('/').any(is_test)
}

fn crate_of(path: &str) -> &str {
    let folders = if path.starts_with("lib/") { 2 } else { 1 };
    path.match_indices('/').nth(folders - 1).map_or(path, |(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| file(path, text)).collect();
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_name_with_two_meanings_is_refused_in_the_second_crate() {
        let core = ("core/src/a.rs", "pub struct Row;");
        for other in
            ["pub enum Row {}", "    pub(crate) trait Row {}", "pub(super) type Row = u32;", "pub unsafe trait Row {}"]
        {
            let found = found(&[core, ("log/src/b.rs", other)]);
            assert_eq!(found, ["type `Row`, which is also in core/src/a.rs"], "{other}");
        }
        assert_eq!(
            found(&[("lib/nats/src/a.rs", "pub struct Row;"), ("lib/sqs/src/a.rs", "pub struct Row;")]).len(),
            1
        );
    }

    #[test]
    fn names_of_one_crate_of_one_idea_and_out_of_sight_may_repeat() {
        let core = ("core/src/a.rs", "pub struct Row;\npub struct Job;\n");
        for (path, text) in [
            ("core/src/b.rs", "pub struct Row;"),
            ("log/src/b.rs", "struct Row;"),
            ("log/src/b.rs", "pub struct Job;"),
            ("log/src/b.rs", "// pub struct Row;"),
            ("log/src/b.rs", "    type Row = u32;"),
            ("log/tests/b.rs", "pub struct Row;"),
            ("log/src/engine/tests.rs", "pub struct Row;"),
            ("log/src/b.rs", "pub struct RowPlace;"),
        ] {
            assert_eq!(found(&[core, (path, text)]), [""; 0], "{path}: {text}");
        }
    }

    #[test]
    fn a_bare_participle_is_refused_wherever_it_stands() {
        for name in ["Told", "Held", "Answered", "Kept", "Marked", "Unwritten"] {
            assert_eq!(found(&[("core/tests/a.rs", &format!("struct {name};"))]), [format!("type `{name}`")]);
        }
        for name in ["Feed", "Seed", "KeptInputs", "Received", "Red", "CommitReply"] {
            assert_eq!(found(&[("core/src/a.rs", &format!("pub struct {name};"))]), [""; 0], "{name}");
        }
    }
}
