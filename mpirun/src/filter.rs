//! Filter of the job's standard error, line by line. It takes out markers, holds back messages of
//! mpirun and the MPI library, and passes on all else at once, byte for byte.

use tributary_engine::marker::{Marker, find};

use crate::blocks::{Block, is_dashes};

/// Maximum number of lines of a block. mpirun's longest has fewer; a longer one is a rank that
/// happens to print dashes.
const BLOCK_LINES: usize = 80;

/// Meaning of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// A rank's marker.
    Marker(Marker),
    /// A rank's own line about a failure.
    Complaint,
    /// A block of mpirun's own.
    Block(Block),
    /// A line of the MPI library's own. When a rank is lost, others report it in the library's
    /// words before ours.
    Remark(Vec<u8>),
    /// There is no more to read.
    End,
}

/// Classifies lines.
#[derive(Debug)]
pub struct Filter {
    id: String,
    open: Option<Block>,
}

impl Filter {
    /// For attempt `id`.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), open: None }
    }

    /// Takes a line, its end included; gives the bytes to pass on now, and the line's meaning.
    pub fn line(&mut self, line: &[u8]) -> (Vec<u8>, Option<JobEvent>) {
        let text = String::from_utf8_lossy(line);
        if let Some((start, marker)) = find(&text, &self.id) {
            return (text.as_bytes()[..start].to_vec(), Some(JobEvent::Marker(marker)));
        }
        // Ranks write while mpirun does: such a line may come in the middle of a block.
        if text.starts_with("tributary: ") {
            return (line.to_vec(), Some(JobEvent::Complaint));
        }
        if is_forwarding(&text) {
            return (Vec::new(), None);
        }
        match (self.open.take(), is_dashes(&text)) {
            (None, false) if is_remark(&text) => (Vec::new(), Some(JobEvent::Remark(line.to_vec()))),
            (None, false) => (line.to_vec(), None),
            (None, true) => {
                self.open = Some(Block { lines: vec![line.to_vec()] });
                (Vec::new(), None)
            }
            (Some(mut block), dashes) => {
                block.lines.push(line.to_vec());
                if dashes {
                    return (Vec::new(), Some(JobEvent::Block(block)));
                }
                if block.lines.len() > BLOCK_LINES {
                    return (block.lines.concat(), None);
                }
                self.open = Some(block);
                (Vec::new(), None)
            }
        }
    }

    /// The block that was begun and not ended.
    pub fn end(self) -> Option<Block> {
        self.open
    }
}

/// Whether a line is Open MPI 4's about a signal that it passes on, because we have sent it that
/// signal.
fn is_forwarding(text: &str) -> bool {
    text.starts_with("mpirun: Forwarding signal ")
}

/// Whether a line begins as Open MPI's own do: `[HOST:PID] `, or `[HOST:PID][[`.
fn is_remark(text: &str) -> bool {
    let Some((tag, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) else { return false };
    let pid = tag.rsplit_once(':').map(|(host, pid)| (!host.is_empty(), pid.parse::<u32>()));
    matches!(pid, Some((true, Ok(_)))) && (rest.starts_with(' ') || rest.starts_with("[["))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_engine::marker::Failed;

    const ID: &str = "0123456789abcdef";

    /// Text that is passed on, and the meanings.
    fn filtered(text: &str) -> (String, Vec<JobEvent>) {
        let mut filter = Filter::new(ID);
        let (mut passed, mut events) = (Vec::new(), Vec::new());
        for line in text.split_inclusive('\n') {
            let (pass, event) = filter.line(line.as_bytes());
            passed.extend(pass);
            events.extend(event);
        }
        events.extend(filter.end().map(JobEvent::Block));
        (String::from_utf8(passed).expect("text"), events)
    }

    fn block(text: &str) -> JobEvent {
        JobEvent::Block(Block { lines: text.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect() })
    }

    #[test]
    fn ordinary_lines_pass_untouched() {
        let text = "one\n\n  two\r\n-----\n[vm] x\n[vm:a] x\n[:1] x\n[1,0]<stderr>:x\n[vm:1]\nno end";
        assert_eq!(filtered(text), (text.to_owned(), vec![]));
        let mut filter = Filter::new(ID);
        assert_eq!(filter.line(b"\xff\xfe\n"), (b"\xff\xfe\n".to_vec(), None), "bytes that are no text");
    }

    #[test]
    fn markers_are_taken_out() {
        let failed = Marker::Failed(Failed { exit_code: 75, rank: 2 });
        let text = format!("a\ntributary-failed {ID} 75 2\nb\nunendedtributary-completed {ID}\n");
        let events = vec![JobEvent::Marker(failed), JobEvent::Marker(Marker::Completed)];
        assert_eq!(filtered(&text), ("a\nb\nunended".to_owned(), events));
        let other = "tributary-completed 0000000000000000\n";
        assert_eq!(filtered(other), (other.to_owned(), vec![]), "another launch's marker is not ours");
    }

    #[test]
    fn nobody_hears_of_a_signal_that_is_passed_on() {
        assert_eq!(filtered("a\nmpirun: Forwarding signal 10 to job\nb\n"), ("a\nb\n".to_owned(), vec![]));
    }

    #[test]
    fn the_librarys_own_lines_are_remarks() {
        let remarks = ["[vm:27906] Read -1, expected 8388608, errno = 3\n", "[a.b:1][[1,1],0][../btl.c:7] closed\n"];
        let events = remarks.map(|line| JobEvent::Remark(line.as_bytes().to_vec())).to_vec();
        assert_eq!(filtered(&format!("a\n{}b\n", remarks.concat())), ("a\nb\n".to_owned(), events));
    }

    #[test]
    fn blocks_are_held_and_ranks_are_heard_at_once() {
        let dashes = "-".repeat(74);
        let text = format!("a\n{dashes}\nmpirun\ntributary: rank 1: lost\nnoticed\n{dashes}\nb\n");
        let held = block(&format!("{dashes}\nmpirun\nnoticed\n{dashes}\n"));
        assert_eq!(filtered(&text), ("a\ntributary: rank 1: lost\nb\n".to_owned(), vec![JobEvent::Complaint, held]));
    }

    #[test]
    fn nothing_is_lost_of_what_is_no_block() {
        let dashes = "-".repeat(74);
        let unended = format!("{dashes}\nx\n");
        assert_eq!(filtered(&format!("a\n{unended}")), ("a\n".to_owned(), vec![block(&unended)]));
        let table = format!("{dashes}\n{}", "row\n".repeat(200));
        assert_eq!(filtered(&table), (table, vec![]));
    }
}
