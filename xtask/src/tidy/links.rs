//! Every relative link in a Markdown file leads to a file or folder of the repository.

use std::collections::BTreeSet;

use super::{File, Finding};

pub fn check(files: &[File]) -> Vec<Finding> {
    let places = places(files);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in targets(&file.text) {
            let found = resolve(&file.path, &target).is_some_and(|place| places.contains(place.as_str()));
            if !found {
                findings.push(Finding {
                    path: file.path.clone(),
                    line,
                    what: format!("the link `{target}` leads nowhere"),
                    remedy: "correct it, or add the file that it promises",
                });
            }
        }
    }
    findings
}

/// Every file and every folder above one; the root is the empty name.
fn places(files: &[File]) -> BTreeSet<&str> {
    let mut places = BTreeSet::from([""]);
    for file in files {
        places.insert(&file.path);
        places.extend(file.path.match_indices('/').map(|(at, _)| &file.path[..at]));
    }
    places
}

/// The relative targets of `[text](target)`, `[name]: target`, `src="target"` and `href="target"`, outside of code.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
        if marker.is_some() && (fence.is_none() || fence == marker) {
            fence = if fence.is_none() { marker } else { None };
            continue;
        }
        if fence.is_some() {
            continue;
        }
        let line = without_inline_code(line);
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let html = ["src=\"", "href=\""]
            .into_iter()
            .flat_map(|attribute| line.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()));
        let definition = start.starts_with('[').then(|| line.split_once("]: ")).flatten().map(|(_, target)| target);
        for target in inline.chain(html).chain(definition) {
            // What follows a space is the title; what follows `#` is a place inside the file.
            let target = target.split_whitespace().next().unwrap_or("").trim_matches(['<', '>']);
            let target = target.split('#').next().unwrap_or("");
            if !target.is_empty() && !is_elsewhere(target) {
                found.push((at + 1, target.to_owned()));
            }
        }
    }
    found
}

fn is_elsewhere(target: &str) -> bool {
    target.starts_with("//") || target.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'))
}

fn without_inline_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An odd number of back-ticks means that the last one opens nothing.
    let is_code = |at: usize| at % 2 == 1 && at + 1 < parts.len();
    parts.iter().enumerate().map(|(at, part)| if is_code(at) { "code" } else { part }).collect()
}

/// The place in the repository that `target` means in the file `from`; `None` if it leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (base, target) = match target.strip_prefix('/') {
        Some(from_root) => ("", from_root),
        None => (folder, target),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn lines_found(text: &str) -> Vec<usize> {
        let files = [file("docs/a.md", text), file("docs/decisions/one.md", ""), file("README.md", "")];
        check(&files).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(lines_found("fine\n[x](no.md)"), [2]);
        assert_eq!(lines_found("[x](../../README.md)"), [1]);
        assert_eq!(lines_found("[x](README.md) and [y](no.md#z)"), [1, 1]);
        assert_eq!(lines_found("[x]: no.md \"title\""), [1]);
        assert_eq!(lines_found("<img src=\"no.png\">"), [1]);
        assert_eq!(lines_found("[`code`](no.md)"), [1]);
        assert_eq!(lines_found("a ` alone, [x](no.md)"), [1]);
        assert_eq!(lines_found("```\n[x](no.md)\n```\n[x](no.md)"), [4]);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        for text in [
            "[x](decisions/one.md)",
            "[x](decisions/one.md#part \"title\")",
            "[x](decisions/) [y](decisions) [z](..)",
            "[x](../README.md) [y](/README.md) [z](./a.md)",
            "[x](https://example.org/no.md) [y](mailto:a@b.c) [z](#part)",
            "`[x](no.md)`",
            "~~~\n[x](no.md)\n```\n~~~",
        ] {
            assert_eq!(lines_found(text), [0_usize; 0], "{text}");
        }
    }
}
