//! Integration tests of the engine that are not laws: opening, URLs, errors of the file system.
