//! Secrets of a source: given beside its section, or in a file that the section names.

use crate::error::{Error, Result};
use std::path::Path;

/// The text of a secret's file.
pub(crate) fn read_secret(field: &str, file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| {
        Error::invalid(format!("{field} {} cannot be read", file.display())).with_source(error)
    })
}

/// The password: what is `given` wins over `password_file`.
#[cfg(feature = "_shared_reader")]
pub(crate) fn password(given: Option<String>, file: Option<&Path>) -> Result<Option<String>> {
    let Some(file) = file.filter(|_| given.is_none()) else { return Ok(given) };
    Ok(Some(read_secret("password_file", file)?.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_is_given_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "of the file\n").unwrap();
        let gone = dir.path().join("gone");
        assert_eq!(password(None, None).unwrap(), None);
        assert_eq!(password(None, Some(&*file)).unwrap().as_deref(), Some("of the file"));
        assert_eq!(password(Some("given".to_owned()), Some(&*gone)).unwrap().as_deref(), Some("given"));
        let error = password(None, Some(&*gone)).unwrap_err().to_string();
        assert!(error.starts_with("password_file ") && error.ends_with(" cannot be read"), "{error}");
    }
}
