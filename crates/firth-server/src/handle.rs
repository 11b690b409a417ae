//! Handles: what a client gives back to name something that the server holds for it. Those of an
//! earlier life of the server never match.

/// Writes and reads the handles of this life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    life: u64,
}

impl Handles {
    pub(crate) fn new() -> Self {
        Self { life: fastrand::u64(..) }
    }

    pub(crate) fn write(self, number: u64) -> String {
        format!("{:016x}.{number:x}", self.life)
    }

    /// The number of a handle, if it is of this life.
    pub(crate) fn read(self, handle: &str) -> Option<u64> {
        let (life, number) = handle.split_once('.')?;
        let is_ours = u64::from_str_radix(life, 16).ok()? == self.life;
        u64::from_str_radix(number, 16).ok().filter(|_| is_ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_for_one_life() {
        let one = Handles { life: 1 };
        let other = Handles { life: 2 };
        assert_eq!(one.read(&one.write(77)), Some(77));
        assert_eq!(other.read(&one.write(77)), None);
        for wrong in ["", ".", "1", "1.", ".1", "x.1", "1.x", "1.1.1"] {
            assert_eq!(one.read(wrong), None, "{wrong}");
        }
    }
}
