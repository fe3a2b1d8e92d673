//! Which process ids are free where an image is restored.

use std::collections::BTreeSet;
use std::io;

/// More ids than CRIU itself takes in a restore, by far.
const FREE_IDS: i32 = 512;
/// Below this the kernel gives no ids a second time (`RESERVED_PIDS`).
const RESERVED: i32 = 300;

/// An id after which [`FREE_IDS`] are free of those `taken`: best the one that was given last; else the begin of the largest gap.
fn free_after(taken: &BTreeSet<i32>, last: i32, most: i32) -> i32 {
    let ends = taken.iter().copied().chain([most]);
    let mut begun = RESERVED.min(most);
    let mut best = (0, begun);
    for end in ends {
        let (from, gap) = (begun.max(last), end - begun.max(last));
        if (begun..end).contains(&from) && from == last && gap > FREE_IDS {
            return last;
        }
        best = best.max((end - begun, begun));
        begun = begun.max(end);
    }
    best.1
}

/// Looks at this PID namespace while the processes of the image stand still.
pub(super) fn free() -> io::Result<i32> {
    let most = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
    let most = most.trim().parse().map_err(io::Error::other)?;
    let mut taken = BTreeSet::new();
    for process in std::fs::read_dir("/proc")? {
        let process = process?;
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        taken.insert(pid);
        // A leader's id stays taken by its group and session when it has ended.
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let (_, rest) = stat.rsplit_once(')').unwrap_or_default();
        let ids = rest.split_ascii_whitespace().skip(2).take(2);
        taken.extend(ids.filter_map(|w| w.parse::<i32>().ok()));
        let threads = std::fs::read_dir(process.path().join("task"));
        let threads = threads.into_iter().flatten().flatten();
        taken.extend(threads.filter_map(|t| t.file_name().to_str()?.parse::<i32>().ok()));
    }
    Ok(free_after(&taken, tarn_sys::namespace::last_pid()?, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_after_the_last_is_taken_first_and_the_largest_gap_then() {
        let free = |taken: &[i32], last| free_after(&taken.iter().copied().collect(), last, 32768);
        assert_eq!(
            free(&[1, 2, 5], 9),
            300,
            "new ids begin there after the first round"
        );
        assert_eq!(free(&[1, 2, 400, 5000], 5003), 5003);
        // The round has begun again, and somebody is in the way.
        assert_eq!(free(&[1, 2, 700, 31000], 600), 700);
        assert_eq!(free(&[1, 2, 700, 2000, 31000], 705), 705);
        // Too near to the end.
        assert_eq!(free(&[1, 2, 32700], 32701), 300);
        assert_eq!(free(&[], 0), 300);
    }
}
