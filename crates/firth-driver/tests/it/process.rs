//! One driver process of a run: everything said to it and by it goes to the timeline, and a policy
//! answers each delivery.

use firth_driver::history::{Entry, Fault, What};
use firth_driver::{Command, Event, Input};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// What was done and seen, in order.
#[derive(Clone, Default)]
pub(crate) struct Timeline(Arc<Mutex<Vec<Entry>>>);

impl Timeline {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap()
    }

    /// As JSON lines.
    pub(crate) fn lines(&self) -> String {
        self.lock().iter().map(|entry| serde_json::to_string(entry).unwrap() + "\n").collect()
    }

    pub(crate) fn count(&self, matches: impl Fn(&Entry) -> bool) -> usize {
        self.lock().iter().filter(|entry| matches(entry)).count()
    }
}

/// What to answer to a delivery: `(id, epoch, token, attempt)`.
pub(crate) type Policy = Box<dyn Fn(&str, u64, u64, u32) -> Option<Command> + Send>;

pub(crate) fn ack_all() -> Policy {
    Box::new(|id, epoch, token, _| Some(Command::Ack { id: id.to_owned(), epoch: Some(epoch), token }))
}

/// Settles nothing: every delivery stays in hand.
pub(crate) fn silence() -> Policy {
    Box::new(|_, _, _, _| None)
}

/// Killed and reaped when dropped.
pub(crate) struct Process {
    pub(crate) name: String,
    group: Option<String>,
    timeline: Timeline,
    child: Child,
    stdin: Arc<Mutex<Option<ChildStdin>>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(
        timeline: &Timeline,
        (name, group): (&str, Option<&str>),
        args: &[&str],
        policy: Policy,
    ) -> Self {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_firth-driver"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = Arc::new(Mutex::new(child.stdin.take()));
        let mut process = Self {
            name: name.to_owned(),
            group: group.map(str::to_owned),
            timeline: timeline.clone(),
            child,
            stdin,
            reader: None,
        };
        process.reader = Some(process.read(policy));
        process
    }

    fn read(&mut self, policy: Policy) -> JoinHandle<()> {
        let lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        let pen = self.pen();
        let stdin = self.stdin.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A killed process may leave half a line.
                let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
                pen.note(What::Told(event.clone()));
                let Event::Delivered { id, epoch, token, attempt, .. } = event else { continue };
                if let Some(command) = policy(&id, epoch, token, attempt) {
                    hand_over(&pen, &stdin, What::Asked(command.clone()), &command);
                }
            }
        })
    }

    fn pen(&self) -> Pen {
        Pen { name: self.name.clone(), group: self.group.clone(), timeline: self.timeline.clone() }
    }

    pub(crate) fn send(&self, input: Input) {
        hand_over(&self.pen(), &self.stdin, What::Input(input.clone()), &input);
    }

    pub(crate) fn order(&self, command: Command) {
        hand_over(&self.pen(), &self.stdin, What::Asked(command.clone()), &command);
    }

    /// Everything that it has said so far.
    pub(crate) fn said(&self) -> Vec<Event> {
        let told = |entry: &Entry| match &entry.what {
            What::Told(event) if entry.source == self.name => Some(event.clone()),
            _ => None,
        };
        self.timeline.lock().iter().filter_map(told).collect()
    }

    pub(crate) fn heard(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.said().iter().filter(|event| matches(event)).count()
    }

    /// Ends its input and waits for it; true if it ended well.
    pub(crate) fn finish(mut self) -> bool {
        drop(self.stdin.lock().unwrap().take());
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        status.success()
    }

    /// `kill -9`, and waits until everything that it said is in the timeline.
    pub(crate) fn kill(mut self) {
        self.pen().note(What::Fault(Fault::Process));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
    }

    pub(crate) fn stop(&self) {
        self.pen().note(What::Fault(Fault::Process));
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Pen {
    name: String,
    group: Option<String>,
    timeline: Timeline,
}

impl Pen {
    fn note(&self, what: What) {
        let source = self.name.clone();
        let group = self.group.clone();
        self.timeline.lock().push(Entry { source, group, what });
    }
}

/// Notes a line and writes it, unless the process is told to end: what it cannot read was never
/// asked.
fn hand_over(pen: &Pen, stdin: &Mutex<Option<ChildStdin>>, what: What, line: &impl Serialize) {
    let mut line = serde_json::to_vec(line).unwrap();
    line.push(b'\n');
    if let Some(stdin) = stdin.lock().unwrap().as_mut() {
        pen.note(what);
        // A killed process takes nothing more.
        let _ = stdin.write_all(&line);
    }
}
