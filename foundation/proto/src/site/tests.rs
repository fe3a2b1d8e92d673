use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn part(workflow: &str, dataset: &str) -> Part {
    Part {
        owner: Owner::User(1000),
        workflow: workflow.into(),
        dataset: dataset.into(),
        version: 2,
        part: 1,
    }
}

#[test]
fn a_part_has_one_folder_and_strange_names_none() {
    let folder = part("foam", "mesh").folder();
    assert_eq!(folder, Some(PathBuf::from("u1000/d/foam/mesh/2/1")));
    for bad in [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "a\0",
        "a b",
        "ä",
        &"x".repeat(65),
    ] {
        assert_eq!(part(bad, "mesh").folder(), None, "{bad}");
        assert_eq!(part("foam", bad).folder(), None, "{bad}");
    }
}

#[test]
fn a_message_is_read_as_it_was_written() {
    let command = NumberedOrder {
        number: 7,
        order: NodeOrder::Do {
            user: 1000,
            group: 100,
            work: Box::new(Work::Remove(vec![
                StoreContent::Job(3),
                StoreContent::Part(part("a", "b")),
            ])),
        },
    };
    let frame = encode(&command).unwrap();
    let length = u32::from_le_bytes(frame[..4].try_into().unwrap());
    assert_eq!(length as usize, frame.len() - 4);
    assert_eq!(decode::<NumberedOrder>(&frame[4..]), Ok(command));
    assert_eq!(
        decode::<NumberedOrder>(&frame[4..frame.len() - 1]),
        Err(FrameError::Garbage)
    );
    let longer = [&frame[4..], b"1"].concat();
    assert_eq!(decode::<NumberedOrder>(&longer), Err(FrameError::Garbage));
}

#[test]
fn orders_about_ranks_and_checkpoints_are_read_as_they_were_written() {
    let folder = CheckpointFolder {
        workflow: "foam".into(),
        step: "solve".into(),
    };
    let rule = tarn_types::pattern::ScatterRule::new("p{rank}").unwrap();
    let slice = Slice {
        rule,
        first: 0,
        end: 2,
        rest: true,
    };
    let sliced = Work::Slice {
        job: 17,
        dataset: "x".into(),
        parts: vec![(part("foam", "x"), Some(Origin::Outside("/x".into())), None)],
        slice,
        written: true,
        store: String::new(),
    };
    let store = "pmem".to_owned();
    let made = Work::Checkpoints { folder, store };
    for work in [sliced, made] {
        let order = NodeOrder::Do {
            user: 1000,
            group: 100,
            work: Box::new(work),
        };
        let frame = encode(&order).unwrap();
        assert_eq!(decode::<NodeOrder>(&frame[4..]), Ok(order));
    }
}

#[test]
fn a_slice_has_its_ranks_and_perhaps_the_rest() {
    let slice = |first, end, rest| Slice {
        rule: tarn_types::pattern::ScatterRule::new("run/p{rank}").unwrap(),
        first,
        end,
        rest,
    };
    let own = slice(2, 4, true);
    for (path, has) in [
        ("run", true),
        ("dict", true),
        ("run/p1", false),
        ("run/p2/x", true),
        ("run/p4", false),
    ] {
        assert_eq!(own.has(path.as_bytes()), has, "{path}");
    }
    assert!(!slice(2, 4, false).has(b"dict"));
    assert!(own.may_overlap(&slice(3, 9, false)) && own.may_overlap(&slice(9, 12, true)));
    assert!(!own.may_overlap(&slice(0, 2, false)) && !own.may_overlap(&slice(4, 6, false)));
    let mut other = slice(4, 6, false);
    other.rule = tarn_types::pattern::ScatterRule::new("p{rank}").unwrap();
    assert!(own.may_overlap(&other));
}

/// The name is that of a folder that outlives jobs and tarn's versions.
#[test]
fn checkpoints_have_one_folder_and_one_name() {
    let folder = |workflow: &str, step: &str| CheckpointFolder {
        workflow: workflow.into(),
        step: step.into(),
    };
    let own = folder("heat", "solve");
    assert_eq!(own.path(1000), Some(PathBuf::from("u1000/c/heat/solve")));
    assert_eq!(own.run_name(1000), "c8b9a2642260d7a5557144d316dd10e12");
    let others = [
        own.run_name(1001),
        folder("heats", "olve").run_name(1000),
        folder("heat", "other").run_name(1000),
    ];
    assert!(!others.contains(&own.run_name(1000)));
    for bad in ["", "..", "a/b", ".x"] {
        assert_eq!(folder(bad, "x").path(1), None);
        assert_eq!(folder("x", bad).path(1), None);
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_a_message_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..512),
        cut in 0..400usize,
        other in any::<u8>(),
    ) {
        // A message with a byte changed, as well as noise.
        let work = Work::Fetch { part: part("a", "b"), from: Origin::Outside("/x".into()), proof: None, sealed: false, store: String::new() };
        let order = NodeOrder::Do { user: 1, group: 2, work: Box::new(work) };
        let mut near = encode(&NumberedOrder { number: 1, order }).unwrap().split_off(4);
        let at = cut % near.len();
        near[at] = other;
        let _ = decode::<NumberedOrder>(&near);
        let _ = decode::<NumberedOrder>(&bytes);
        let _ = decode::<Report>(&bytes);
        let _ = decode::<NodeWelcome>(&bytes);
        let _ = decode::<Greeting>(&bytes);
        let _ = decode::<ControllerRequest>(&bytes);
        let _ = decode::<ControllerReply>(&bytes);
        let _ = decode::<Work>(&bytes);
        let _ = decode::<WorkResult>(&bytes);
    }
}
