//! A path of somebody's own machine means nothing to anybody else.

use super::{File, Finding, source::is_ident};

/// Top-level folders in which people and build machines keep their own things.
/// Written without slashes, so that this file does not find itself.
const FOLDERS: &[&str] = &["home", "root", "work", "farm", "Users"];

/// Written by cargo.
const SKIPPED: &[&str] = &["Cargo.lock"];

pub fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !SKIPPED.contains(&file.path.as_str())) {
        for (at, line) in file.text.lines().enumerate() {
            let found = FOLDERS.iter().map(|folder| format!("/{folder}/")).filter(|prefix| names_path(line, prefix));
            findings.extend(found.map(|prefix| Finding {
                path: file.path.clone(),
                line: at + 1,
                what: format!("a path below `{prefix}`"),
                remedy: "write it relative to the repository, or make it a setting",
            }));
        }
    }
    findings
}

/// True for the path itself, not for a route or folder that merely contains it (`docs/…`, `v1/…`).
fn names_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let is_inner = line[..at].ends_with(|c: char| is_ident(c) || matches!(c, '.' | '-' | '}' | ')' | '>' | '~'));
        let goes_on = line[at + prefix.len()..].starts_with(|c: char| is_ident(c) || c == '.');
        !is_inner && goes_on
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[file(path, text)]).len()
    }

    #[test]
    fn each_folder_is_found_in_any_kind_of_file() {
        for folder in FOLDERS {
            assert_eq!(found("a.md", &format!("see\n`/{folder}/me/notes`")), 1, "{folder}");
            assert_eq!(found("a.rs", &format!("const P: &str = \"/{folder}/x\";")), 1, "{folder}");
            assert_eq!(found("a.toml", &format!("path=/{folder}/.cargo")), 1, "{folder}");
            assert_eq!(found("a.sh", &format!("curl file:///{folder}/x")), 1, "{folder}");
        }
    }

    #[test]
    fn inner_folders_and_the_lock_file_are_left_alone() {
        for folder in FOLDERS {
            for text in ["docs/FOLDER/x", "${HOME}/FOLDER/x", "https://example.org/FOLDER/x", "~/FOLDER/x", "/FOLDER/"]
            {
                assert_eq!(found("a.md", &text.replace("FOLDER", folder)), 0, "{text}");
            }
            assert_eq!(found("Cargo.lock", &format!("/{folder}/me")), 0);
        }
    }
}
