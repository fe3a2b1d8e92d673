//! The data plane's messages: round trips, and bytes that are none.

use proptest::prelude::*;
use tarn_proto::data::{
    Builder, DataRequest, FileRange, MAX_REQUEST, Malformed, ReadReplyHeader, ReadRequest,
    ReadStatus, Tree, Window, release,
};

fn trees() -> impl Strategy<Value = Tree> {
    let name = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        name().prop_map(|n| Tree::Replica(n.into())),
        name().prop_map(|n| Tree::Space(n.into())),
    ]
}

fn items() -> impl Strategy<Value = Vec<FileRange>> {
    let path = prop_oneof![
        Just(b"same".to_vec()),
        proptest::collection::vec(any::<u8>(), 1..60),
    ];
    let item = (path, 0..u64::MAX / 4, 0..u64::MAX / 4).prop_map(|(path, offset, len)| FileRange {
        path: path.into(),
        offset,
        len,
    });
    proptest::collection::vec(item, 0..20)
}

fn encode(request: &ReadRequest) -> Vec<u8> {
    let mut builder = Builder::new(request.number, &request.tree, request.windows).unwrap();
    for item in &request.items {
        assert!(builder.push(&item.path, item.offset, item.len).unwrap());
    }
    builder.finish()
}

proptest! {
    #[test]
    fn requests_come_back(number: u32, windows: bool, tree in trees(), items in items()) {
        let request = ReadRequest { number, windows, tree, items };
        let bytes = encode(&request);
        let len = ReadRequest::length(bytes[..4].try_into().unwrap()).unwrap();
        prop_assert_eq!(len, bytes.len() - 4);
        prop_assert_eq!(DataRequest::decode(&bytes[4..]).unwrap(), DataRequest::Read(request));
    }

    #[test]
    fn a_truncated_or_longer_request_is_none(tree in trees(), items in items(), cut in 0usize..400) {
        let mut bytes = encode(&ReadRequest { number: 7, windows: false, tree, items }).split_off(4);
        if cut < bytes.len() {
            prop_assert!(DataRequest::decode(&bytes[..cut]).is_err());
        }
        bytes.push(0);
        prop_assert!(DataRequest::decode(&bytes).is_err());
    }

    #[test]
    fn one_wrong_byte_is_survived(tree in trees(), items in items(), at in 0usize..2000, to: u8) {
        let mut bytes = encode(&ReadRequest { number: 7, windows: false, tree, items }).split_off(4);
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(DataRequest::Read(request)) = DataRequest::decode(&bytes) {
            prop_assert!(request.items.iter().all(|i| !i.path.is_empty() && i.offset.checked_add(i.len).is_some()));
        }
    }

    #[test]
    fn noise_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = DataRequest::decode(&bytes);
        // Noise that begins well.
        let mut begun = vec![1, 0, 0, 0, 0, 1, 0, 0];
        begun.extend_from_slice(&bytes);
        if let Ok(DataRequest::Read(request)) = DataRequest::decode(&begun) {
            prop_assert!(request.items.len() * 18 <= bytes.len());
        }
        if let Some(head) = bytes.first_chunk() {
            let _ = ReadReplyHeader::decode(head);
        }
    }

    #[test]
    fn heads_come_back(request: u32, item: u32, len: u64, run: [u8; 16]) {
        for status in [ReadStatus::Content, ReadStatus::Gone, ReadStatus::Shorter, ReadStatus::Refused, ReadStatus::Failed, ReadStatus::Wait, ReadStatus::Window] {
            let len = if matches!(status, ReadStatus::Content | ReadStatus::Window) { len } else { len % 4097 };
            let answer = ReadReplyHeader { request, item, status, len };
            prop_assert_eq!(ReadReplyHeader::decode(&answer.encode()).unwrap(), answer);
        }
        let released = release(request, item);
        prop_assert_eq!(ReadRequest::length(*released.first_chunk().unwrap()).unwrap(), released.len() - 4);
        prop_assert_eq!(DataRequest::decode(&released[4..]).unwrap(), DataRequest::Release { request, item });
        prop_assert!(DataRequest::decode(&released[4..12]).is_err());
        let window = Window { name: run.as_slice().into(), from: len, key: !len };
        let bytes = window.encode();
        let (name, from, key) = Window::decode_head(bytes.first_chunk().unwrap());
        prop_assert_eq!((&bytes[Window::HEAD..], name, from, key), (&run[..], run.len(), len, !len));
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    assert!(ReadRequest::length((MAX_REQUEST as u32).to_le_bytes()).is_ok());
    assert!(ReadRequest::length((MAX_REQUEST as u32 + 1).to_le_bytes()).is_err());
    assert!(ReadRequest::length([0xff; 4]).is_err());
    let long = ReadReplyHeader {
        request: 0,
        item: 0,
        status: ReadStatus::Gone,
        len: 4097,
    };
    assert!(ReadReplyHeader::decode(&long.encode()).is_err());
    // 65,535 items announced, none there: an error, not an allocation.
    let mut bytes = vec![1, 0, 0, 0, 0, 1, 0, 0, 0xff, 0xff];
    assert_eq!(DataRequest::decode(&bytes), Err(Malformed("it ends early")));
    bytes[6] = 0xff;
    bytes[7] = 0xff;
    assert_eq!(
        DataRequest::decode(&bytes),
        Err(Malformed("the name of a tree is too long"))
    );
    let mut beyond = Builder::new(0, &Tree::Replica(b"k".as_slice().into()), false).unwrap();
    assert!(beyond.push(b"f", u64::MAX, 2).unwrap());
    assert!(DataRequest::decode(&beyond.finish()[4..]).is_err());
}

#[test]
fn a_probe_has_no_name() {
    let mut probe = Builder::new(7, &Tree::Probe, false).unwrap();
    assert!(probe.push(b"f", 0, 9).unwrap());
    let bytes = probe.finish();
    let Ok(DataRequest::Read(request)) = DataRequest::decode(&bytes[4..]) else {
        panic!("it is no request")
    };
    assert_eq!((request.tree, request.number), (Tree::Probe, 7));
    let named = [1, 0, 0, 0, 0, 3, 1, 0, b'n', 0, 0];
    assert_eq!(
        DataRequest::decode(&named),
        Err(Malformed("a tree of an unknown kind"))
    );
}

#[test]
fn a_request_ends_at_its_bound() {
    let mut builder = Builder::new(0, &Tree::Replica(b"k".as_slice().into()), false).unwrap();
    let mut taken = 0u64;
    while builder
        .push(&[b'a' + (taken % 20) as u8; 4096], taken, 1)
        .unwrap()
    {
        taken += 1;
    }
    let bytes = builder.finish();
    assert!(
        bytes.len() <= MAX_REQUEST + 4 && taken == 63,
        "{taken} {}",
        bytes.len()
    );
    let Ok(DataRequest::Read(request)) = DataRequest::decode(&bytes[4..]) else {
        panic!("it is no request")
    };
    assert_eq!(request.items.len() as u64, taken);
}
