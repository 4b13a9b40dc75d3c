//! A journal that the disk damaged: the node says what is lost and does not start, until somebody accepts that.

mod support;

use std::fs;
use std::path::Path;

use support::{Node, onward, own_loopback};

fn listed(node: &Node, data: &Path) -> usize {
    let output = node.call(data, &["list", "--json", "--limit", "200"]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.matches("\"id\"").count()
}

#[test]
fn a_damaged_journal_is_refused_and_a_loss_is_accepted_once_and_aloud() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let node = Node::start(data);
    for _ in 0..40 {
        assert!(node.call(data, &["submit", "--kind", "k"]).status.success());
    }
    assert_eq!(listed(&node, data), 40);
    node.kill();
    let path = data.join("onward.journal");
    let mut journal = fs::read(&path).unwrap();
    let used = journal.iter().rposition(|byte| *byte != 0).unwrap();
    journal[used / 2] ^= 1;
    fs::write(&path, &journal).unwrap();

    let up = |more: &[&str]| {
        let mut command = onward(&["up", "--slots", "0", "--listen", &own_loopback(), "--data"]);
        command.arg(data).args(more);
        command
    };
    let refused = up(&[]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for word in ["onward.journal is damaged behind event", "are lost", "onward restore", "--accept-loss"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(fs::read(&path).unwrap(), journal, "nothing was changed");

    let said = data.join("said");
    let mut accepting = up(&["--accept-loss"]);
    accepting.env("ONWARD_LOG", "info").stderr(fs::File::create(&said).unwrap());
    let node = Node::start_as(accepting);
    assert!(fs::read_to_string(&said).unwrap().contains("acknowledged events are lost, and that was accepted"));
    let left = listed(&node, data);
    assert!((10..40).contains(&left), "{left} of 40");
    assert!(node.call(data, &["submit", "--kind", "k"]).status.success());
    node.kill();
    let node = Node::start_as(up(&[]));
    assert_eq!(listed(&node, data), left + 1);
}

#[test]
fn a_part_of_the_store_that_is_gone_is_missed_and_not_made_anew() {
    for (gone, lost) in [
        (&["archive.redb"][..], "archive.redb is gone"),
        (&["onward.redb", "onward.journal"][..], "onward.redb and onward.journal are gone"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (data, said) = (folder.path().join("data"), folder.path().join("said"));
        let up = |more: &[&str]| {
            let mut command = onward(&["up", "--slots", "0", "--listen", &own_loopback(), "--data"]);
            command.arg(&data).args(more).env("ONWARD_LOG", "info").stderr(fs::File::create(&said).unwrap());
            command
        };
        let text = || fs::read_to_string(&said).unwrap();
        let node = Node::start_as(up(&[]));
        assert!(node.call(&data, &["submit", "--kind", "k"]).status.success());
        node.kill();
        for name in gone {
            fs::remove_file(data.join(name)).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(up(&[]).output().unwrap().status.code(), Some(1), "{}", text());
            for word in [lost, "onward restore", "--accept-loss", "Nothing was changed"] {
                assert!(text().contains(word), "{word}: {}", text());
            }
            assert!(gone.iter().all(|name| !data.join(name).exists()), "nothing was made");
        }
        let node = Node::start_as(up(&["--accept-loss"]));
        let is_said = text().contains("that was accepted") && text().contains(lost);
        assert!(is_said && !text().contains("nothing is lost"), "{}", text());
        assert_eq!(listed(&node, &data), usize::from(gone[0] == "archive.redb"));
        node.kill();
        Node::start_as(up(&[])).kill();
    }
}

#[test]
fn that_nothing_is_lost_is_said_once_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let (data, said) = (folder.path().join("data"), folder.path().join("said"));
    let up = || {
        let mut command = onward(&["up", "--accept-loss", "--slots", "0", "--listen", &own_loopback(), "--data"]);
        command.arg(&data).env("ONWARD_LOG", "info").stderr(fs::File::create(&said).unwrap());
        command
    };
    let text = || fs::read_to_string(&said).unwrap();
    Node::start_as(up()).kill();
    assert!(text().contains("nothing is lost"), "{}", text());
    fs::write(data.join("archive.redb"), b"no archive at all").unwrap();
    assert_eq!(up().output().unwrap().status.code(), Some(1));
    assert!(text().contains("the node did not start") && !text().contains("nothing is lost"), "{}", text());
}
