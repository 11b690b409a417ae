//! Writes commands: arrays of bulk strings, without copies on the way.
//!
//! An argument lends its bytes ([`ToArg::with_bytes`]) and [`put_bulk`] frames them, so that no
//! implementation can write a malformed command. Numbers are formatted on the stack.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

/// Somewhere bytes can be appended.
pub trait ByteSink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Announces that this many bytes follow.
    #[inline]
    fn reserve(&mut self, additional: usize) {
        let _ = additional;
    }
}

impl ByteSink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn reserve(&mut self, additional: usize) {
        Self::reserve(self, additional);
    }
}

impl ByteSink for BytesMut {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn reserve(&mut self, additional: usize) {
        Self::reserve(self, additional);
    }
}

/// Writes `bytes` as one bulk string: `$5 hello`.
#[inline]
pub fn put_bulk<S: ByteSink + ?Sized>(out: &mut S, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    put_header(out, b'$', bytes.len());
    out.put(bytes);
    out.put(b"\r\n");
}

/// Writes the header of an array of `len` elements, which a command is.
#[inline]
pub fn put_array_header<S: ByteSink + ?Sized>(out: &mut S, len: usize) {
    put_header(out, b'*', len);
}

#[inline]
fn put_header<S: ByteSink + ?Sized>(out: &mut S, tag: u8, len: usize) {
    match len {
        0..10 => out.put(&[tag, b'0' + len as u8, b'\r', b'\n']),
        10..100 => out.put(&[tag, b'0' + (len / 10) as u8, b'0' + (len % 10) as u8, b'\r', b'\n']),
        _ => {
            out.put(&[tag]);
            out.put(itoa::Buffer::new().format(len).as_bytes());
            out.put(b"\r\n");
        }
    }
}

/// A value that can be an argument of a command.
pub trait ToArg {
    /// Lends the argument's bytes to `read`.
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R;

    /// Writes the argument as one bulk string.
    #[inline]
    fn write_arg<S: ByteSink + ?Sized>(&self, out: &mut S) {
        self.with_bytes(|bytes| put_bulk(out, bytes));
    }
}

macro_rules! lends_bytes {
    ($($type:ty),* $(,)?) => {$(
        impl ToArg for $type {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(self.as_ref())
            }
        }
    )*};
}
lends_bytes!(str, String, [u8], Vec<u8>, Bytes, BytesMut);

impl<const N: usize> ToArg for [u8; N] {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        read(self)
    }
}

macro_rules! lends_inner {
    ($($type:ty),* $(,)?) => {$(
        impl<T: ToArg + ?Sized> ToArg for $type {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_bytes(read)
            }
        }
    )*};
}
lends_inner!(&T, &mut T, Box<T>, Arc<T>, Rc<T>);

impl<T: ToArg + ToOwned + ?Sized> ToArg for Cow<'_, T> {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_bytes(read)
    }
}

macro_rules! integers {
    ($($type:ty),* $(,)?) => {$(
        impl ToArg for $type {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(itoa::Buffer::new().format(*self).as_bytes())
            }
        }
    )*};
}
// `u8` is a number on its own; `[u8]` is text.
integers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

macro_rules! floats {
    ($($type:ty),* $(,)?) => {$(
        /// The shortest text that reads back as the same number.
        impl ToArg for $type {
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                let mut text = StackText::default();
                let size = self.abs();
                // Plain notation of very large and small numbers would be hundreds of digits long.
                let written = if size == 0.0 || !size.is_finite() || (1e-5..1e16).contains(&size) {
                    write!(text, "{self}")
                } else {
                    write!(text, "{self:e}")
                };
                written.expect("the shortest form of a float fits 32 bytes");
                read(&text.bytes[..text.len])
            }
        }
    )*};
}
floats!(f32, f64);

/// A little text on the stack.
#[derive(Default)]
struct StackText {
    bytes: [u8; 32],
    len: usize,
}

impl Write for StackText {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let end = self.len + part.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// `1` or `0`.
impl ToArg for bool {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        read(if *self { b"1" } else { b"0" })
    }
}

impl ToArg for char {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        read(self.encode_utf8(&mut [0; 4]).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(value: impl ToArg) -> String {
        let mut out = Vec::new();
        value.write_arg(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn headers_are_right_at_every_width() {
        for len in [0, 1, 9, 10, 11, 99, 100, 101, 12_345] {
            let mut out = Vec::new();
            put_bulk(&mut out, &vec![b'x'; len]);
            assert_eq!(out, format!("${len}\r\n{}\r\n", "x".repeat(len)).as_bytes());
            let mut out = BytesMut::new();
            put_array_header(&mut out, len);
            assert_eq!(out, format!("*{len}\r\n").as_bytes());
        }
    }

    #[test]
    fn text_of_all_sorts_is_written_as_it_is() {
        let expected = "$4\r\na\r\nb\r\n";
        assert_eq!(arg("a\r\nb"), expected);
        assert_eq!(arg(String::from("a\r\nb")), expected);
        assert_eq!(arg(b"a\r\nb"), expected);
        assert_eq!(arg(&b"a\r\nb"[..]), expected);
        assert_eq!(arg(b"a\r\nb".to_vec()), expected);
        assert_eq!(arg(Bytes::from_static(b"a\r\nb")), expected);
        assert_eq!(arg(Cow::Borrowed("a\r\nb")), expected);
        assert_eq!(arg(Cow::<[u8]>::Owned(b"a\r\nb".to_vec())), expected);
        assert_eq!(arg(Box::<str>::from("a\r\nb")), expected);
        assert_eq!(arg(Arc::<[u8]>::from(&b"a\r\nb"[..])), expected);
        assert_eq!(arg(Rc::<str>::from("a\r\nb")), expected);
        assert_eq!(arg('é'), "$2\r\né\r\n");
        assert_eq!(arg(""), "$0\r\n\r\n");
    }

    #[test]
    fn numbers_and_booleans_are_written_in_decimal() {
        assert_eq!(arg(0u8), "$1\r\n0\r\n");
        assert_eq!(arg(i64::MIN), "$20\r\n-9223372036854775808\r\n");
        assert_eq!(arg(u64::MAX), "$20\r\n18446744073709551615\r\n");
        assert_eq!(arg(-7isize), "$2\r\n-7\r\n");
        assert_eq!(arg(true), "$1\r\n1\r\n");
        assert_eq!(arg(false), "$1\r\n0\r\n");
    }

    #[test]
    fn floats_read_back_as_the_same_number() {
        assert_eq!(arg(1.5f64), "$3\r\n1.5\r\n");
        assert_eq!(arg(3.0f32), "$1\r\n3\r\n");
        assert_eq!(arg(f64::NEG_INFINITY), "$4\r\n-inf\r\n");
        for value in
            [0.0, -0.0, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, 1e15, 9.999_999_999_999_998e15, 1e16]
        {
            let same = value.with_bytes(|text| std::str::from_utf8(text).unwrap().parse::<f64>().unwrap());
            assert_eq!(same.to_bits(), value.to_bits());
        }
        for value in [f32::MAX, f32::MIN_POSITIVE, 1.0e-45, 0.1, 123_456.79] {
            let same = value.with_bytes(|text| std::str::from_utf8(text).unwrap().parse::<f32>().unwrap());
            assert_eq!(same.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn every_sink_receives_the_same_bytes() {
        let mut vec = Vec::new();
        let mut bytes = BytesMut::new();
        let mut small = crate::inline_buffer::InlineBuffer::new();
        for part in ["", "GET", &"k".repeat(200)] {
            part.write_arg(&mut vec);
            part.write_arg(&mut bytes);
            part.write_arg(&mut small);
        }
        assert_eq!(vec, bytes);
        assert_eq!(vec, small.as_slice());
    }
}
