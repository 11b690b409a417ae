//! The few bytes-level primitives that every stored form is made of: LEB128 numbers and
//! length-prefixed runs.
//!
//! Reading is total: any input gives a value or `None`, never a panic, never an allocation larger
//! than the input.

use bytes::{Buf, BufMut, Bytes};

pub(crate) fn put_number(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_run(out: &mut impl BufMut, run: &[u8]) {
    put_number(out, run.len() as u64);
    out.put_slice(run);
}

/// Reads one stored form from the front of `Bytes`, sharing its memory.
pub(crate) struct Reader(pub(crate) Bytes);

impl Reader {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(crate) fn run(&mut self) -> Option<Bytes> {
        let len = usize::try_from(self.number()?).ok()?;
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.run()?.into()).ok()
    }

    pub(crate) fn rest(self) -> Bytes {
        self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_and_runs_round_trip(number: u64, run: Vec<u8>) {
            let mut out = Vec::new();
            put_number(&mut out, number);
            put_run(&mut out, &run);
            let mut reader = Reader(out.into());
            prop_assert_eq!(reader.number(), Some(number));
            prop_assert_eq!(reader.run(), Some(Bytes::from(run)));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_input_is_read_without_panic(input: Vec<u8>) {
            let mut reader = Reader(input.into());
            while reader.number().is_some() && reader.run().is_some() {}
        }
    }
}
