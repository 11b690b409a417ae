//! The W3C trace context: reading and writing `traceparent`. Pure.

use std::fmt;

/// Where a span hangs: its trace, itself, and whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    pub(crate) sampled: bool,
}

impl TraceParent {
    /// Reads the header, or nothing if it is not one.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = parts.next()?;
        let trace = parts.next()?;
        let span = parts.next()?;
        let flags = parts.next()?;
        let known = version == "00" && parts.next().is_none();
        let newer = version.len() == 2 && version != "00" && version != "ff";
        if !(known || newer) || (trace.len(), span.len(), flags.len()) != (32, 16, 2) {
            return None;
        }
        let lower = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if ![version, trace, span, flags].into_iter().all(lower) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok()?;
        let span = u64::from_str_radix(span, 16).ok()?;
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }

    /// A new span under this one.
    pub(crate) fn child(self) -> Self {
        Self { span: fastrand::u64(1..), ..self }
    }

    /// The first span of a new trace.
    pub(crate) fn root(sampled: bool) -> Self {
        Self { trace: fastrand::u128(1..), span: fastrand::u64(1..), sampled }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_as_it_is_written_and_nothing_else_is() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceParent::read(text).unwrap();
        assert_eq!(context.to_string(), text);
        assert_eq!(context.child().trace, context.trace);
        assert!(TraceParent::read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::read(wrong), None, "{wrong}");
        }
    }
}
