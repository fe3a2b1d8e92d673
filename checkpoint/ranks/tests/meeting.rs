//! Ranks that come together, agree, and end.

mod common;

use common::until;
use common::{LONG, SHORT, all, far_program, free_port, here, lost, program, round, texts, there};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::time::Duration;
use tarn_ports::ranks::MAX_WORD;
use tarn_ports::{RankProgress, Ranks, RanksError};
use tarn_ranks::{Meeting, Options};

fn reached(committed: u64, durable: u64) -> RankProgress {
    RankProgress {
        committed,
        durable,
        ..RankProgress::default()
    }
}

#[test]
fn eight_ranks_hear_the_words_of_all_in_order_of_ranks() {
    let folder = common::folder();
    let ranks = program(folder.path(), 8);
    for n in 0..50 {
        let word = format!("round {n}, rank");
        let expected: Vec<String> = (0..8).map(|r| format!("{word} {r}")).collect();
        assert!(round(&ranks, &word).iter().all(|words| *words == expected));
    }
    assert!(
        ranks
            .iter()
            .all(|r| r.ranks() == 8 && r.node(7) == ranks[0].node(0))
    );
    assert!(!ranks[0].node(0).is_empty());
}

#[test]
fn a_program_of_one_rank_meets_itself() {
    let folder = common::folder();
    let alone = Meeting::join(here(folder.path(), 0, 1)).unwrap();
    assert_eq!(texts(alone.exchange(b"word", LONG).unwrap()), ["word"]);
    alone.report_progress(reached(2, 1));
    alone.wait(reached(2, 1), LONG).unwrap();
}

#[test]
fn ranks_of_two_nodes_meet_over_tcp_and_know_who_is_where() {
    let folder = common::folder();
    let ranks = far_program(folder.path(), 4);
    assert_eq!(
        round(&ranks, "rank")[3],
        ["rank 0", "rank 1", "rank 2", "rank 3"]
    );
    let nodes: Vec<&str> = (0..4).map(|r| ranks[0].node(r)).collect();
    assert_eq!(nodes, ["node0", "node0", "node1", "node1"]);
    assert_eq!(ranks[0].node(4), "");
}

#[test]
fn who_comes_first_waits_for_the_late() {
    let folder = common::folder();
    let late = 1;
    let options = (0..3).map(|rank| here(folder.path(), rank, 3)).collect();
    let met = all(options, |o: Options| {
        if o.rank == late {
            // The others are waiting, and rank 0 is not there either for a while.
            until("a rank listens", || folder.path().join("2.sock").exists());
            std::thread::sleep(SHORT);
        }
        if o.rank == 0 {
            until("a rank listens", || folder.path().join("2.sock").exists());
        }
        Meeting::join(o).unwrap().rank()
    });
    assert_eq!(met, [0, 1, 2]);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let folder = common::folder();
    let options = [0, 1, 3].map(|rank| Options {
        timeout: if rank == 0 { 6 * SHORT } else { LONG },
        ..here(folder.path(), rank, 4)
    });
    let errors = all(options.into(), |o| Meeting::join(o).unwrap_err());
    let text = errors[0].to_string();
    assert!(text.starts_with("rank 2 did not come within"), "{text}");
    // Without rank 0 the others have no hope.
    assert_eq!([lost(&errors[1]), lost(&errors[2])], ["rank 0"; 2]);
    let options = Options {
        timeout: SHORT,
        ..here(folder.path(), 0, 4)
    };
    let text = Meeting::join(options).unwrap_err().to_string();
    assert!(
        text.starts_with("ranks 1, 2, 3 did not come within"),
        "{text}"
    );
    let options = Options {
        timeout: SHORT,
        ..here(folder.path(), 2, 4)
    };
    let text = Meeting::join(options).unwrap_err().to_string();
    assert!(text.starts_with("rank 0 did not come within"), "{text}");
}

#[test]
fn an_exchange_to_which_a_rank_does_not_come_names_it_and_the_next_is_as_it_should_be() {
    let folder = common::folder();
    let ranks = program(folder.path(), 3);
    let errors = all(ranks[..2].to_vec(), |r| {
        r.exchange(b"first", SHORT).unwrap_err()
    });
    for e in errors {
        let text = e.to_string();
        assert!(
            text.starts_with("rank 2 did not come to the exchange"),
            "{text}"
        );
    }
    let words = all(ranks.clone(), |r| {
        // Rank 2 comes to the first after all.
        let first = (r.rank() == 2).then(|| texts(r.exchange(b"late", LONG).unwrap()));
        (first, texts(r.exchange(b"second", LONG).unwrap()))
    });
    assert_eq!(words[2].0.as_deref().unwrap(), ["first", "first", "late"]);
    assert!(words.iter().all(|(_, second)| second == &["second"; 3]));
    // No more than a few are begun without the one who is missing.
    let given_up: Vec<_> = (0..5)
        .map(|_| ranks[0].exchange(b"again", Duration::ZERO).unwrap_err())
        .collect();
    let last = given_up[4].to_string();
    assert!(last.contains("end earlier exchanges"), "{last}");
}

#[test]
fn what_all_have_reached_is_the_least_of_each_count() {
    let folder = common::folder();
    let ranks = program(folder.path(), 3);
    assert_eq!(ranks[1].common_progress(), RankProgress::default());
    all(ranks.clone(), |r| {
        let n = u64::from(r.rank());
        r.report_progress(reached(5 + n, 4 - n));
        r.wait(reached(5, 2), LONG).unwrap();
        assert_eq!(r.common_progress(), reached(5, 2));
    });
    // Counts only grow.
    ranks[0].report_progress(reached(1, 9));
    let e = ranks[2].wait(reached(6, 2), SHORT).unwrap_err().to_string();
    assert!(e.starts_with("rank 0 did not come so far"), "{e}");
    let e = ranks[1].wait(reached(5, 3), SHORT).unwrap_err().to_string();
    assert!(e.starts_with("rank 2 did not come so far"), "{e}");
}

#[test]
fn to_tell_does_not_wait_for_a_slow_rank_and_the_newest_arrives() {
    let folder = common::folder();
    let ranks = program(folder.path(), 2);
    for n in 1..=100_000 {
        ranks[1].report_progress(reached(n, n));
    }
    ranks[0].report_progress(reached(100_000, 100_000));
    ranks[0].wait(reached(100_000, 100_000), LONG).unwrap();
}

#[test]
fn the_largest_word_is_heard_and_a_byte_more_is_refused() {
    let folder = common::folder();
    let ranks = program(folder.path(), 2);
    let exchanged = all(ranks.clone(), |r| {
        let word = vec![r.rank() as u8 + 1; MAX_WORD];
        r.exchange(&word, LONG).unwrap()
    });
    for words in exchanged {
        assert!(words[0].len() == MAX_WORD && words[0].iter().all(|b| *b == 1));
        assert!(words[1].len() == MAX_WORD && words[1].iter().all(|b| *b == 2));
    }
    let e = ranks[0].exchange(&vec![0; MAX_WORD + 1], LONG).unwrap_err();
    assert!(matches!(e, RanksError::Invalid(_)), "{e}");
    // Nobody has received that.
    assert_eq!(round(&ranks, "next")[1], ["next 0", "next 1"]);
}

#[test]
fn who_ends_in_order_is_missed_only_where_it_is_needed() {
    let folder = common::folder();
    let mut ranks = program(folder.path(), 3);
    all(ranks.clone(), |r| {
        r.report_progress(reached(1, 1 + u64::from(r.rank() != 2)))
    });
    ranks[0].wait(reached(1, 1), LONG).unwrap();
    drop(ranks.pop());
    let e = ranks[0].exchange(b"word", LONG).unwrap_err();
    assert!(
        lost(&e) == "rank 2" && e.to_string().contains("it has ended"),
        "{e}"
    );
    // The progress that it has reported still counts; it will report no more.
    ranks[1].wait(reached(1, 1), LONG).unwrap();
    let e = ranks[1].wait(reached(1, 2), LONG).unwrap_err();
    assert_eq!(lost(&e), "rank 2");
    drop(ranks.remove(0));
    let e = ranks[0].wait(reached(9, 1), LONG).unwrap_err();
    assert_eq!(lost(&e), "rank 0");
    ranks[0].wait(reached(1, 1), LONG).unwrap();
}

#[test]
fn the_last_words_of_a_rank_0_that_ends_are_heard() {
    let folder = common::folder();
    for _ in 0..20 {
        let counts = all(program(folder.path(), 3), |r| {
            let word = vec![r.rank() as u8; 1 << 20];
            r.exchange(&word, LONG).map(|words| words.len())
        });
        assert!(counts.iter().all(|n| matches!(n, Ok(3))), "{counts:?}");
    }
}

#[test]
fn two_programs_of_one_name_are_told_of_each_other() {
    let folder = common::folder();
    let first = program(folder.path(), 2);
    for rank in 0..2 {
        let second = Options {
            timeout: SHORT,
            ..here(folder.path(), rank, 2)
        };
        let e = Meeting::join(second).unwrap_err();
        let text = e.to_string();
        assert!(matches!(e, RanksError::Taken { .. }), "{text}");
        let own = format!("(process {} is its rank {rank})", std::process::id());
        assert!(text.contains(&own), "{text}");
    }
    // It is none the worse for that, and its end is the other's chance.
    assert_eq!(round(&first, "rank")[0], ["rank 0", "rank 1"]);
    drop(first);
    assert_eq!(round(&program(folder.path(), 2), "rank").len(), 2);
}

#[test]
fn a_rank_of_a_program_that_is_complete_or_of_another_size_is_refused_on_every_node() {
    let folder = common::folder();
    let meet = free_port();
    let options = (0..2).map(|rank| there(folder.path(), &meet, rank, 2));
    let first = all(options.collect(), |o| Meeting::join(o).unwrap());
    // Each is refused until it is clear that the program is not one that is just ending.
    let again = all(vec![(0, 2), (1, 2), (1, 3), (2, 3)], |(rank, ranks)| {
        Meeting::join(Options {
            folder: folder.path().join(format!("{rank} of {ranks}")),
            ..there(folder.path(), &meet, rank, ranks)
        })
    });
    let errors: Vec<_> = again.into_iter().map(Result::unwrap_err).collect();
    let texts: Vec<_> = errors.iter().map(RanksError::to_string).collect();
    for (e, text) in errors[..2].iter().zip(&texts) {
        assert!(matches!(e, RanksError::Taken { .. }), "{text}");
    }
    for (rank, text) in [1, 2].iter().zip(&texts[2..]) {
        let wanted = format!("2 ranks here, and rank {rank} is one of 3");
        assert!(text.contains(&wanted), "{text}");
    }
    assert_eq!(round(&first, "rank")[0], ["rank 0", "rank 1"]);
}

#[test]
fn two_programs_in_two_folders_do_not_see_each_other() {
    let folders = [(); 2].map(|()| common::folder());
    let programs = all(folders.iter().collect(), |f| program(f.path(), 3));
    let words = all(
        vec![(&programs[0], "a"), (&programs[1], "b")],
        |(ranks, word)| (0..20).map(|_| round(ranks, word)).next_back().unwrap(),
    );
    assert_eq!(words[0][2], ["a 0", "a 1", "a 2"]);
    assert_eq!(words[1][2], ["b 0", "b 1", "b 2"]);
}

#[test]
fn a_folder_that_others_could_use_is_refused_and_a_missing_one_is_made() {
    let folder = common::folder();
    let refused = |name: &str, why: &str| {
        let e = Meeting::join(here(&folder.path().join(name), 0, 1)).unwrap_err();
        assert!(e.to_string().contains(why), "{e}");
    };
    let target = folder.path().join("target");
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&target)
        .unwrap();
    symlink(&target, folder.path().join("link")).unwrap();
    refused("link", "is a link");
    std::fs::DirBuilder::new()
        .mode(0o755)
        .create(folder.path().join("open"))
        .unwrap();
    refused("open", "chmod 700");
    std::fs::write(folder.path().join("file"), b"").unwrap();
    refused("file", "is a link or no folder");
    // However deep: a socket's path may be no longer than 107 bytes.
    let deep = folder
        .path()
        .join("deep".repeat(20))
        .join("deeper".repeat(20));
    drop(Meeting::join(here(&deep, 0, 1)).unwrap());
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&deep).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let left: Vec<_> = std::fs::read_dir(&deep)
        .unwrap()
        .map(|f| f.unwrap().file_name())
        .collect();
    assert_eq!(left, ["0.lock"]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = common::folder();
    let good = || here(folder.path(), 0, 1);
    let meet = |meet: &str| Some(meet.to_owned());
    let wrong = [
        Options { ranks: 0, ..good() },
        Options { rank: 1, ..good() },
        Options {
            ranks: 100_000,
            ..good()
        },
        Options {
            meet: meet("127.0.0.1:0"),
            ..good()
        },
        Options {
            meet: meet("127.0.0.1"),
            key: Some([0; 32]),
            ..good()
        },
        Options {
            meet: meet("127.0.0.1:x"),
            key: Some([0; 32]),
            ..good()
        },
        Options {
            node: Some("n".repeat(256)),
            ..good()
        },
    ];
    for options in wrong {
        let e = Meeting::join(options).unwrap_err();
        assert!(matches!(e, RanksError::Invalid(_)), "{e}");
    }
}
