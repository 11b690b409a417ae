//! Laws of the conversions.
