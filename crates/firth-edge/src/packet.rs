//! [`Packet`]: a finished message inside the WebSocket frame that carries it. A server does not
//! mask its frames, so the same bytes serve every socket; other carriers take the
//! [`text`](Packet::text) out.

use bytes::{BufMut as _, Bytes, BytesMut};
use std::fmt;

/// A whole message, as text.
const FINAL_TEXT: u8 = 0x81;

#[derive(Clone)]
pub(crate) struct Packet {
    frame: Bytes,
    /// Where the text begins.
    text_at: u8,
}

impl Packet {
    /// Joins the parts to one text.
    pub(crate) fn new(parts: &[&str]) -> Self {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut frame = BytesMut::with_capacity(length + 10);
        frame.put_u8(FINAL_TEXT);
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ 0..126), _) => frame.put_u8(short),
            (_, Ok(middle)) => {
                frame.put_u8(126);
                frame.put_u16(middle);
            }
            _ => {
                frame.put_u8(127);
                frame.put_u64(length as u64);
            }
        }
        let text_at = u8::try_from(frame.len()).expect("a head has at most 10 bytes");
        for part in parts {
            frame.put_slice(part.as_bytes());
        }
        Self { frame: frame.freeze(), text_at }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.frame[usize::from(self.text_at)..]).expect("it was made of texts")
    }
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

/// Never shows the text.
impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes)", self.frame.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

    #[test]
    fn others_read_the_frame_as_the_text_whatever_its_length() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
            let text = "ä".repeat(length / 2) + &"x".repeat(length % 2);
            let packet = Packet::new(&[&text[..0], &text]);
            assert_eq!(packet.text(), text);
            let stream = std::io::Cursor::new(packet.as_ref().to_vec());
            let mut socket = WebSocket::from_raw_socket(stream, Role::Client, None);
            assert_eq!(socket.read().unwrap(), Message::Text(text.into()));
        }
    }
}
