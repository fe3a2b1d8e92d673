"""Tests of what bench/crowd.py makes of its samples: /usr/bin/python3 -m unittest discover -s bench."""

import unittest

from crowd import calls_of, rank, results_of, work_of

# Of Slurm 22.05; 24.11 has the same lines.
SDIAG = """*******************************************************
sdiag output at Tue Dec 01 05:00:00 2026 (1796101200)
Main schedule statistics (microseconds):
\tLast cycle:   12

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:15     ave_time:100    total_time:1500
\tREQUEST_JOB_INFO                        ( 2003) count:2      ave_time:50000  total_time:100000

Remote Procedure Call statistics by user
\troot            (       0) count:17     ave_time:5970   total_time:101500
"""


def plain(name, value, unit, against, goal):
    """A result without its message."""
    return name, round(value, 6), unit, against, round(goal, 6)


class Crowd(unittest.TestCase):
    """Ranks, ratios, and slurmctld's own account."""

    def test_ranks(self):
        samples = list(range(100, 0, -1))
        self.assertEqual((rank(samples, 0.5), rank(samples, 0.99), rank(samples, 1)), (50, 99, 100))
        self.assertEqual(rank([7.0], 0.99), 7.0)

    def test_calls_are_of_types_not_of_users(self):
        self.assertEqual(calls_of(SDIAG), {"REQUEST_PARTITION_INFO": (15, 0.0015), "REQUEST_JOB_INFO": (2, 0.1)})
        self.assertEqual(calls_of("no statistics"), {})

    def test_ratios_are_against_both_windows_without_the_controller(self):
        windows = {"before": [[10, 20], [10, 40]], "drive": [[20, 44], [20, 30]], "after": [[10, 30], [10, 20]]}
        starts = {kind: [[1, 1]] for kind in windows}
        found = {row[0]: row for row in results_of(windows, starts, plain)}
        self.assertEqual(found["ratio of that, slowest"][1], 1.1)
        self.assertEqual(found["control: ratio of two windows without it, slowest"][1], 0.75)
        # Slowest of the windows: 44 and 30; 20, 40, 30 and 20.
        self.assertEqual(found["ratio of that, slowest of a window"][1], round(37 / 25, 6))
        self.assertEqual(found["sinfo, median, with the controller in drive"][1:5:2], (25, "without it"))

    def test_work_is_a_share_of_the_time(self):
        own = {
            "before": [{"REQUEST_NODE_INFO": (10, 0.1)}],
            "drive": [{"REQUEST_NODE_INFO": (10, 0.2), "REQUEST_JOB_INFO": (5, 0.3)}],
            "after": [{"REQUEST_NODE_INFO": (10, 0.3)}],
        }
        rows = work_of(own, 10, plain)
        self.assertEqual(rows[0][1:], (5.0, "%", "without it", 2.0))
        self.assertEqual(rows[1][:2], ("REQUEST_JOB_INFO, 0.50 a second, mean with the controller", 60.0))
        self.assertEqual(rows[2][1:], (20.0, "ms", "without it", 20.0))


if __name__ == "__main__":
    unittest.main()
