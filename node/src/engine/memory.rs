//! How much memory this process may have: what the computer has, or less where a control group says so. A group is
//! limited by all groups above it too, and a container or a service often has its limit there.

use std::fs;
use std::path::Path;

/// The smallest of all limits, in bytes. `root` is `/`, but for tests.
pub(super) fn limit(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = total.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.saturating_mul(1024);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_limit(root, line));
    // A container may see the group that it is in as the root, under whatever name `groups` has it.
    let here = ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let here = here.iter().filter_map(|path| bytes_in(&root.join(path)));
    Some(limits.chain(here).fold(total, u64::min))
}

/// The limit by one line of `/proc/self/cgroup`: `0::/a/b` in version 2, `4:memory:/a/b` in version 1, where each
/// controller has a tree of its own, and several may share one.
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
    let (tree, name) = if controllers.is_empty() {
        (root.join("sys/fs/cgroup"), "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (root.join("sys/fs/cgroup/memory"), "memory.limit_in_bytes")
    } else {
        return None;
    };
    let group = Path::new(group.trim_start_matches('/'));
    group.ancestors().filter_map(|above| bytes_in(&tree.join(above).join(name))).min()
}

/// None where there is no limit: no file, or `max`.
fn bytes_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A computer with 8 GiB, and these files.
    fn limit_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:        8388608 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit(root.path())
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_all_above_it_counts() {
        let v2 = ("proc/self/cgroup", "0::/system.slice/team.slice/onward.service\n");
        let own = "sys/fs/cgroup/system.slice/team.slice/onward.service/memory.max";
        let slice = "sys/fs/cgroup/system.slice/team.slice/memory.max";
        let top = "sys/fs/cgroup/system.slice/memory.max";
        let unified = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n";
        let v1 = ("proc/self/cgroup", unified);
        for (files, expected) in [
            (vec![], 8192 * MIB),
            (vec![v2, (own, "max\n")], 8192 * MIB),
            (vec![v2, (own, "1073741824\n")], 1024 * MIB),
            (vec![v2, (own, "max\n"), (slice, "536870912\n"), (top, "max\n")], 512 * MIB),
            (vec![v2, (own, "1073741824\n"), (slice, "max\n"), (top, "268435456\n")], 256 * MIB),
            // More than there is.
            (vec![v2, (own, "99999999999999\n")], 8192 * MIB),
            // Within a container that sees its own group as the root.
            (vec![("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "134217728\n")], 128 * MIB),
            (vec![v2, ("sys/fs/cgroup/memory.max", "134217728\n")], 128 * MIB),
            // Version 1.
            (vec![v1, ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n")], 1024 * MIB),
            (vec![v1, ("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "536870912\n")], 512 * MIB),
            (vec![v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n")], 256 * MIB),
            (vec![v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")], 8192 * MIB),
            (vec![v1, ("sys/fs/cgroup/cpu/docker/abc/memory.limit_in_bytes", "1\n")], 8192 * MIB),
        ] {
            assert_eq!(limit_with(&files), Some(expected), "{files:?}");
        }
    }

    #[test]
    fn a_system_that_does_not_tell_has_no_limit() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(limit(empty.path()), None);
    }
}
