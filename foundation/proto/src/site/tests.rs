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
