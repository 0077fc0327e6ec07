//! Server-sent events, read from bytes that come in pieces of any length.

/// Bytes of an event, or of a line, that are more than any answer has.
const MOST_BYTES: usize = 16 << 20;

/// Reads the data of events: comments and other fields are passed over.
#[derive(Debug, Default)]
pub struct Events {
    /// A line that has not ended yet.
    line: Vec<u8>,
    /// The lines of data of an event that has not ended yet, each with a line break after it.
    data: String,
    /// Whether the last byte was a carriage return that ended a line: a line feed after it belongs
    /// to it.
    behind_return: bool,
}

/// An event that is longer than any answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

impl Events {
    /// Takes bytes, and gives the data of each event that ends in them.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let behind_return = std::mem::replace(&mut self.behind_return, byte == b'\r');
            match byte {
                b'\n' if behind_return => {}
                b'\n' | b'\r' => events.extend(self.line_ends()),
                byte => self.line.push(byte),
            }
            if self.line.len() + self.data.len() > MOST_BYTES {
                return Err(TooLong);
            }
        }
        Ok(events)
    }

    fn line_ends(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let mut data = std::mem::take(&mut self.data);
            data.pop()?;
            return Some(data);
        }
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            self.data += &String::from_utf8_lossy(data);
            self.data.push('\n');
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": keep-alive\n\ndata: {\"a\": \"ä€\"}\n\nevent: x\r\ndata:one\r\ndata:  two\r\nid: 7\r\n\r\n\
        : \rdata: [DONE]\r\rdata: cut";

    #[test]
    fn events_are_the_same_wherever_they_are_split() {
        let wanted = ["{\"a\": \"ä€\"}", "one\n two", "[DONE]"];
        let bytes = STREAM.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut events = Events::default();
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let found: Vec<String> = pieces.iter().flat_map(|piece| events.push(piece).unwrap()).collect();
                assert_eq!(found, wanted, "split at {first} and {second}");
            }
        }
        let mut events = Events::default();
        let found: Vec<String> = bytes.iter().flat_map(|byte| events.push(&[*byte]).unwrap()).collect();
        assert_eq!(found, wanted, "byte by byte");
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let mut events = Events::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..17).map(|_| events.push(&piece)).find_map(Result::err);
        assert_eq!(refused, Some(TooLong));
    }
}
