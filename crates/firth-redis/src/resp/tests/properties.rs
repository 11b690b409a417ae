//! Laws that hold for every value, every split and every garbage.

use super::*;
use crate::fuzzing;
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes that may stand on a line.
fn line() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>().prop_filter("a line has no line end", |byte| !b"\r\n".contains(byte)), 0..20)
}

fn scalar() -> impl Strategy<Value = Tree> {
    prop_oneof![
        line().prop_map(Tree::SimpleString),
        line().prop_map(Tree::SimpleError),
        vec(any::<u8>(), 0..300).prop_map(Tree::BlobString),
        vec(any::<u8>(), 0..30).prop_map(Tree::BlobError),
        any::<i64>().prop_map(Tree::Integer),
        (-9i64..9).prop_map(Tree::Integer),
        any::<f64>()
            .prop_filter("a NaN does not equal itself", |value| !value.is_nan())
            .prop_map(Tree::Double),
        (any::<bool>(), 0..u128::MAX)
            .prop_map(|(minus, digits)| Tree::BigNumber(format!("{}{digits}", if minus { "-" } else { "" }))),
        any::<bool>().prop_map(Tree::Boolean),
        Just(Tree::Null),
        (any::<[u8; 3]>(), vec(any::<u8>(), 0..30)).prop_map(|(format, text)| Tree::Verbatim(format, text)),
    ]
}

fn any_tree() -> impl Strategy<Value = Tree> {
    scalar().prop_recursive(4, 64, 6, |inner| {
        let pairs = || vec((inner.clone(), inner.clone()), 0..4);
        let bare = inner
            .clone()
            .prop_filter("one attribute for each value", |tree| !matches!(tree, Tree::Attributed(..)));
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Tree::Array),
            vec(inner.clone(), 0..6).prop_map(Tree::Set),
            vec(inner.clone(), 0..6).prop_map(Tree::Push),
            pairs().prop_map(Tree::Map),
            (pairs(), bare).prop_map(|(attributes, value)| Tree::Attributed(attributes, Box::new(value))),
        ]
    })
}

fn encoded(trees: &[Tree]) -> Vec<u8> {
    let mut wire = Vec::new();
    trees.iter().for_each(|tree| tree.encode(&mut wire));
    wire
}

fn decoded<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Tree> {
    let (frames, error) = decode_all(&ReplyLimits::default(), pieces);
    assert_eq!(error, None);
    frames.iter().map(|frame| frame.value().into()).collect()
}

/// Bytes that look like RESP more often than not.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        6 => proptest::sample::select(&b"$*:+-_#,(!=%~>|.;"[..]).prop_map(|tag| vec![tag]),
        6 => Just(b"\r\n".to_vec()),
        4 => (0u8..20).prop_map(|number| number.to_string().into_bytes()),
        1 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        1 => proptest::sample::select(vec!["?", "t", "inf", "txt:", "\n", "\r"]).prop_map(|odd| odd.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ];
    vec(token, 0..60).prop_map(|tokens| tokens.concat())
}

proptest! {
    #[test]
    fn reading_what_was_written_is_the_identity(trees in vec(any_tree(), 1..4)) {
        prop_assert_eq!(decoded([&encoded(&trees)[..]]), trees);
    }

    #[test]
    fn any_split_decodes_alike(trees in vec(any_tree(), 1..4), cuts in vec(any::<prop::sample::Index>(), 0..8)) {
        let wire = encoded(&trees);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len() + 1)).collect();
        cuts.extend([0, wire.len()]);
        cuts.sort_unstable();
        prop_assert_eq!(&decoded(cuts.windows(2).map(|cut| &wire[cut[0]..cut[1]])), &trees);
        prop_assert_eq!(&decoded(wire.chunks(1)), &trees);
    }

    #[test]
    fn a_frame_that_misses_its_last_byte_is_not_whole(tree in any_tree()) {
        let wire = encoded(&[tree]);
        prop_assert!(decoded([&wire[..wire.len() - 1]]).is_empty());
    }

    #[test]
    fn garbage_keeps_the_laws(data in garbage()) {
        fuzzing::resp(&data);
    }

    #[test]
    fn damaged_frames_keep_the_laws(
        tree in any_tree(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut wire = encoded(&[tree]);
        for (at, byte) in damage {
            let at = at.index(wire.len());
            wire[at] = byte;
        }
        fuzzing::resp(&wire);
    }
}
