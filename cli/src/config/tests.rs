use super::*;
use std::time::Duration;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("onward.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn flags(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn wrong(config: Option<&Path>, given: &[(&str, &str)]) -> Vec<String> {
    match load(config, &flags(given), |_| None) {
        Err(ConfigError::Wrong(wrong)) => wrong,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let (_folder, path) =
        file("seat_ttl = '4s'\nworkers = 4\n[lease]\ninitial = '4m'\n[job.retry]\nmax_attempts = 4\n");
    let env = |name: &str| match name {
        "ONWARD_LEASE_INITIAL" => Some("5m".into()),
        "ONWARD_SEAT_TTL" => Some("5s".into()),
        "ONWARD_QUIET_BUDGET" => Some("".into()),
        _ => None,
    };
    let effective = load(Some(&path), &flags(&[("seat_ttl", "6s")]), env).unwrap();
    let of = |name: &str| {
        let setting = effective.listed.iter().find(|setting| setting.name == name).unwrap();
        (setting.value.clone(), setting.origin.clone())
    };
    assert_eq!(of("seat_ttl"), ("6s".into(), Origin::Flag));
    assert_eq!(of("lease.initial"), ("5m".into(), Origin::Env("ONWARD_LEASE_INITIAL".into())));
    assert_eq!(of("workers"), ("4".into(), Origin::File(path.clone())));
    assert_eq!(of("job.retry.max_attempts"), ("4".into(), Origin::File(path)));
    assert_eq!(of("quiet_budget"), ("10m".into(), Origin::Default));
    assert_eq!((effective.rules.seat_ttl, effective.rules.limits.workers), (Duration::from_secs(6), 4));
}

#[test]
fn the_file_in_the_data_folder_is_found_and_need_not_be_there() {
    let (folder, path) = file("slots = 3\nhost_names = ['a.example', 'b.example']\n");
    let data = folder.path().to_str().unwrap().to_owned();
    let effective = load(None, &flags(&[("data", &data)]), |_| None).unwrap();
    assert_eq!((effective.node.slots, effective.node.host_names.len()), (3, 2));
    let from_env = |name: &str| (name == "ONWARD_DATA").then(|| data.clone().into());
    assert_eq!(load(None, &[], from_env).unwrap().node.slots, 3);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(load(None, &flags(&[("data", &data)]), |_| None).unwrap().node.slots, crate::work::cores());
    assert!(
        matches!(load(Some(&path), &[], |_| None), Err(ConfigError::Unreadable { .. })),
        "a named file must be there"
    );
}

#[test]
fn unknown_names_are_refused_with_a_suggestion() {
    let (_folder, path) = file("[lease]\ninitail = '1m'\n[jobs]\nstuck_after = '1m'\n[wholly]\nother = 1\n");
    let told = wrong(Some(&path), &[]);
    let origin = format!("(file {})", path.display());
    assert_eq!(
        told,
        [
            format!("`jobs.stuck_after` {origin} is not a setting; did you mean `job.stuck_after`?"),
            format!("`lease.initail` {origin} is not a setting; did you mean `lease.initial`?"),
            format!("`wholly.other` {origin} is not a setting"),
        ]
    );
}

#[test]
fn everything_wrong_is_said_at_once() {
    let told = wrong(
        None,
        &[
            ("data", "/nowhere"),
            ("workers", "0"),
            ("listen", "here"),
            ("nope_at_all", "1"),
            ("gap_after", "3s"),
            ("tls.key", "k"),
            ("http.connections", "0"),
            ("archive.retain", "0s"),
            ("overload.rise.busy", "0.6"),
            ("probes.hang_after", "1ms"),
        ],
    );
    assert_eq!(
        told,
        [
            "`listen` is `here` (flag); it must be an address with a port, like 127.0.0.1:7400",
            "`nope_at_all` (flag) is not a setting",
            "`tls.cert` and `tls.key` go together; give both or neither",
            "`http.connections` is 0; it must be from 1 to 1000000 (flag)",
            "`archive.retain` is 0ns; it must be from 1ms to 31622400s (flag)",
            "`probes.hang_after` is 1ms; it must be from 1s to 3600s (flag)",
            "`overload.rise.busy` is 0.6 (with stressed 0.5 and overloaded 1); it must be above 0, and none of the three above the next (flag)",
            "`gap_after` is 3s; it must be less than seat_ttl (3s) (flag)",
            "`workers` is 0; it must be at least 1 (flag)",
        ]
    );
}

#[test]
fn what_is_not_toml_is_told_with_its_place() {
    let (_folder, path) = file("a = \n");
    let error = load(Some(&path), &[], |_| None).unwrap_err().to_string();
    assert!(error.contains("is not TOML") && error.contains("line 1"), "{error}");
}
