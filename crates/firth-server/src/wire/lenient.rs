//! How JSON is read: strictly as objects where objects are meant, and leniently where numbers are
//! whole but written as `5.0`.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Unexpected, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A value written as an object. A plain struct would also be read from an array, by the order of
/// its fields.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        from.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// One object.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Object::deserialize(from).map(|Object(value)| value)
}

/// A list of objects.
pub(super) fn objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(from)?.into_iter().map(|Object(value)| value).collect())
}

/// A whole number, also one that is written with a fraction of zero.
pub(super) fn whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    struct WholeVisitor;
    impl Visitor<'_> for WholeVisitor {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 0 on")
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<u64, E> {
            // Beyond 2^53 a float does not say which number is meant.
            let is_whole = value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value);
            if is_whole { Ok(value as u64) } else { Err(E::invalid_value(Unexpected::Float(value), &self)) }
        }
    }
    let value = from.deserialize_any(WholeVisitor)?;
    T::try_from(value).map_err(|_| Error::custom(format_args!("{value} is too large")))
}

/// As [`whole`], or nothing.
pub(super) fn maybe_whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    struct Number<T>(T);
    impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            whole(from).map(Self)
        }
    }
    Ok(Option::<Number<T>>::deserialize(from)?.map(|Number(value)| value))
}

/// As [`whole`], for a field that may be absent and is never null: an empty form must not pass for
/// a field that was left out.
pub(super) fn given_whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    whole(from).map(Some)
}

/// As [`maybe_whole`], where null says something else than absence: that is `None`, by the default.
pub(super) fn given_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    maybe_whole(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[derive(Default)]
    struct SubscriptionRequest {
        #[serde(deserialize_with = "maybe_whole")]
        count: Option<u32>,
    }

    #[test]
    fn large_whole_numbers_stay_whole_when_they_are_written_with_a_point() {
        let number = |text: &str| whole::<_, u64>(&mut serde_json::Deserializer::from_str(text)).unwrap();
        assert_eq!(number("3995597631774970.0"), 3_995_597_631_774_970);
        assert_eq!(number("9007199254740991.0"), 9_007_199_254_740_991);
    }

    #[test]
    fn numbers_are_whole_however_they_are_written_and_objects_are_objects() {
        let read = |text: &str| {
            serde_json::from_str::<Object<SubscriptionRequest>>(text).map(|Object(request)| request.count)
        };
        assert_eq!(read(r#"{"count": 5}"#).unwrap(), Some(5));
        assert_eq!(read(r#"{"count": 5.0}"#).unwrap(), Some(5));
        assert_eq!(read(r#"{"count": null}"#).unwrap(), None);
        assert_eq!(read("{}").unwrap(), None);
        for wrong in [
            r#"{"count": 5.5}"#,
            r#"{"count": -1}"#,
            r#"{"count": 4294967296}"#,
            r#"{"count": "5"}"#,
            "[5]",
            "null",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
