//! What a key holds becomes a document. Pure.

use super::config::ReadAs;
use crate::error::{Error, Result};
use bytes::Bytes;
use firth_redis::resp::Tree;
use firth_redis::{CallError, Command, cmd};
use firth_router::event::Document;
use serde_json::{Map, Value};

/// The command that reads a key.
pub(super) fn command(read: ReadAs, key: &Bytes) -> Command {
    let name = match read {
        ReadAs::String | ReadAs::Text => "GET",
        ReadAs::Hash => "HGETALL",
        ReadAs::Json => "JSON.GET",
    };
    cmd(name).key(&key[..])
}

/// The document that a reply holds; none if there is no key.
pub(super) fn document(read: ReadAs, reply: Result<Tree, CallError>) -> Result<Option<Document>> {
    let reply = reply.map_err(|error| {
        let code = error.code().unwrap_or("ERR");
        Error::poison(format!("a key cannot be read as the configuration says: {code}"))
    })?;
    let document = match (read, reply) {
        (_, Tree::Null) => return Ok(None),
        (ReadAs::Hash, Tree::Map(fields)) if fields.is_empty() => return Ok(None),
        (ReadAs::Hash, Tree::Map(fields)) => {
            let fields =
                fields.into_iter().map(|(name, value)| Ok((text(name)?, Value::String(text(value)?))));
            Document::from_value(&Value::Object(fields.collect::<Result<Map<_, _>>>()?))
        }
        (ReadAs::Text, reply) => {
            let value = Value::String(text(reply)?);
            Document::from_value(&Value::Object(Map::from_iter([("value".to_owned(), value)])))
        }
        (ReadAs::String | ReadAs::Json, Tree::BlobString(json)) => Document::from_json(json),
        _ => return Err(Error::poison("a key holds something else than the configuration says")),
    };
    document.map(Some).map_err(|error| Error::poison(format!("document: {error}")))
}

fn text(value: Tree) -> Result<String> {
    match value {
        Tree::BlobString(bytes) | Tree::SimpleString(bytes) => {
            String::from_utf8(bytes).map_err(|_| Error::poison("a value is no text"))
        }
        _ => Err(Error::poison("a value is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(text: &str) -> Tree {
        Tree::BlobString(text.into())
    }

    fn read(read: ReadAs, reply: Tree) -> Option<String> {
        let document = document(read, Ok(reply)).unwrap()?;
        Some(String::from_utf8(document.text().to_vec()).unwrap())
    }

    #[test]
    fn values_become_documents_as_the_configuration_says() {
        let fields = Tree::Map(vec![(blob("a"), blob("1")), (blob("b"), blob("x"))]);
        assert_eq!(read(ReadAs::Hash, fields).unwrap(), r#"{"a":"1","b":"x"}"#);
        assert_eq!(read(ReadAs::Hash, Tree::Map(Vec::new())), None, "a key that is gone");
        assert_eq!(read(ReadAs::String, blob(r#"{"n": 1.50}"#)).unwrap(), r#"{"n": 1.50}"#);
        assert_eq!(read(ReadAs::Json, blob(r#"{"n":1}"#)).unwrap(), r#"{"n":1}"#);
        assert_eq!(read(ReadAs::Text, blob("7")).unwrap(), r#"{"value":"7"}"#);
        assert_eq!(read(ReadAs::Text, Tree::Null), None);
        for wrong in [blob("planted"), Tree::Integer(7), blob("[1]")] {
            let error = document(ReadAs::String, Ok(wrong)).unwrap_err();
            assert!(!error.to_string().contains("planted"), "{error}");
        }
        assert!(document(ReadAs::Text, Ok(Tree::BlobString(vec![0xFF]))).is_err());
    }
}
