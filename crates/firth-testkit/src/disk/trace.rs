//! From the text of `strace -f -xx` to what happened to files, in the order in which it happened.

use std::collections::HashMap;
use std::path::Path;

/// The system calls that change files or the table of open ones.
pub(super) const CALLS: &str = "open,openat,creat,close,close_range,dup,dup2,dup3,fcntl,lseek,\
    write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,copy_file_range,sendfile,\
    rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,\
    fsync,fdatasync,sync_file_range";

/// One thing that happened.
#[derive(Debug)]
pub(super) enum Op {
    Open {
        fd: i32,
        at: Place,
        how: How,
    },
    Close(i32),
    Duplicate {
        from: i32,
        to: i32,
    },
    Seek {
        fd: i32,
        to: u64,
    },
    /// At the file's position, unless `at` says where.
    Write {
        fd: i32,
        at: Option<u64>,
        data: Vec<u8>,
    },
    Resize {
        fd: i32,
        to: u64,
    },
    Rename {
        from: Place,
        to: Place,
    },
    Remove(Place),
    MakeDir(Place),
    /// A thread begins to sync; what is written from now on is not covered.
    SyncBegins {
        thread: u32,
        fd: i32,
    },
    SyncEnds {
        thread: u32,
        is_ok: bool,
    },
    /// The program wrote this to its standard output.
    Say(Vec<u8>),
}

/// What happens to the file that is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) create: bool,
    pub(super) truncate: bool,
    pub(super) append: bool,
}

/// A path below the recorded folder, or below an open folder.
#[derive(Debug)]
pub(super) struct Place {
    /// The open folder that `path` begins in.
    pub(super) dir: Option<i32>,
    pub(super) path: String,
}

/// Everything in the trace that concerns files below `root`.
pub(super) fn parse(text: &str, root: &Path) -> Vec<Op> {
    let mut parser = Parser { root: format!("{}/", root.display()), begun: HashMap::new(), ops: Vec::new() };
    text.lines().for_each(|line| parser.line(line));
    parser.ops
}

struct Parser {
    root: String,
    /// What threads have begun and not ended.
    begun: HashMap<u32, String>,
    ops: Vec<Op>,
}

impl Parser {
    fn line(&mut self, line: &str) {
        let Some((thread, call)) = line.split_once(' ') else { return };
        let thread = thread.parse().expect("a line begins with its thread");
        let call = call.trim_start();
        if call.starts_with("+++") || call.starts_with("---") {
            return;
        }
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            self.begin(thread, begun);
            self.begun.insert(thread, begun.to_owned());
        } else if let Some(resumed) = call.strip_prefix("<... ") {
            let rest = resumed.split_once('>').expect("a resumed call").1;
            if let Some(begun) = self.begun.remove(&thread) {
                self.end(thread, &format!("{}{}", begun.trim_end(), rest.trim_start()));
            }
        } else {
            self.begin(thread, call);
            self.end(thread, call);
        }
    }

    fn begin(&mut self, thread: u32, call: &str) {
        let Some((name, args)) = call.split_once('(') else { return };
        let fd = || small(number(args).expect("the first argument is a file"));
        match name {
            "fsync" | "fdatasync" => self.ops.push(Op::SyncBegins { thread, fd: fd() }),
            // Another thread may get the number before this call returns.
            "close" => self.ops.push(Op::Close(fd())),
            _ => {}
        }
    }

    fn end(&mut self, thread: u32, call: &str) {
        let (call, result) = call.rsplit_once(" = ").expect("a call has a result");
        let (name, args) = call.split_once('(').expect("a call has arguments");
        let Some(result) = number(result) else { return };
        if name == "fsync" || name == "fdatasync" {
            return self.ops.push(Op::SyncEnds { thread, is_ok: result == 0 });
        }
        if result < 0 {
            return;
        }
        let args: Vec<&str> = args.trim_end().trim_end_matches(')').split(", ").collect();
        if let Some(op) = self.op(name, &args, result) {
            self.ops.push(op);
        }
    }

    /// What a call that succeeded did; `None` if that was elsewhere, or nothing.
    fn op(&self, name: &str, args: &[&str], result: i64) -> Option<Op> {
        let fd = || small(number(args[0]).expect("the first argument is a file"));
        let nth = |n: usize| u64::try_from(number(args[n]).expect("a number")).expect("not negative");
        Some(match name {
            "open" => open(small(result), self.place(None, args[0])?, args[1]),
            "openat" => open(small(result), self.place(Some(args[0]), args[1])?, args[2]),
            "dup" | "dup2" | "dup3" => Op::Duplicate { from: fd(), to: small(result) },
            "fcntl" if args[1].starts_with("F_DUPFD") => Op::Duplicate { from: fd(), to: small(result) },
            "close" | "fcntl" | "close_range" | "sync_file_range" => return None,
            "lseek" => Op::Seek { fd: fd(), to: result.unsigned_abs() },
            "write" | "writev" | "pwrite64" => {
                let mut data: Vec<u8> = args.iter().flat_map(|arg| quoted(arg)).collect();
                data.truncate(usize::try_from(result).expect("not negative"));
                match fd() {
                    1 => Op::Say(data),
                    fd => Op::Write { fd, at: (name == "pwrite64").then(|| nth(3)), data },
                }
            }
            "ftruncate" => Op::Resize { fd: fd(), to: nth(1) },
            "rename" => Op::Rename { from: self.place(None, args[0])?, to: self.place(None, args[1])? },
            "renameat" | "renameat2" => Op::Rename {
                from: self.place(Some(args[0]), args[1])?,
                to: self.place(Some(args[2]), args[3])?,
            },
            "unlink" | "rmdir" => Op::Remove(self.place(None, args[0])?),
            "unlinkat" => Op::Remove(self.place(Some(args[0]), args[1])?),
            "mkdir" => Op::MakeDir(self.place(None, args[0])?),
            "mkdirat" => Op::MakeDir(self.place(Some(args[0]), args[1])?),
            other => panic!("the recording does not know what {other} does"),
        })
    }

    /// The place below the recorded folder, if it is there.
    fn place(&self, dir: Option<&str>, path: &str) -> Option<Place> {
        let path = String::from_utf8(quoted(path).collect()).expect("paths are UTF-8");
        match dir.and_then(number) {
            Some(fd) if !path.starts_with('/') => Some(Place { dir: Some(small(fd)), path }),
            _ => Some(Place { dir: None, path: format!("{path}/").strip_prefix(&self.root)?.to_owned() }),
        }
    }
}

fn open(fd: i32, at: Place, flags: &str) -> Op {
    let has = |flag: &str| flags.split('|').any(|word| word == flag);
    let how = How { create: has("O_CREAT"), truncate: has("O_TRUNC"), append: has("O_APPEND") };
    Op::Open { fd, at, how }
}

/// The number that a text begins with.
fn number(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(text.len());
    text[..end].parse().ok()
}

fn small(number: i64) -> i32 {
    i32::try_from(number).expect("the number of an open file is small")
}

/// The bytes of all strings in an argument.
fn quoted(arg: &str) -> impl Iterator<Item = u8> {
    let strings = arg.split('"').skip(1).step_by(2);
    strings
        .flat_map(|hex| hex.split("\\x").skip(1))
        .map(|byte| u8::from_str_radix(byte, 16).expect("strace -xx writes all bytes in hexadecimal"))
}
