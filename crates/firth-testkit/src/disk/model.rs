//! A disk under a page cache, by the rules of POSIX: what was not synced may be lost.
//!
//! A file's pages are safe once a sync of the file has begun after they were written and has ended
//! well. A name is safe once its folder was synced. If a sync fails, the pages that it was to write
//! are lost, or not, each by itself; later syncs leave them out, because the system takes them for
//! clean.

use super::trace::{How, Op, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: usize = 4096;
type Page = Arc<[u8; PAGE]>;
type Pages = BTreeMap<u64, Page>;

/// Files and folders, as a program sees them and as they are on the disk.
#[derive(Clone)]
pub(super) struct Disk {
    /// The first one is the root.
    nodes: Vec<Node>,
    open: HashMap<i32, usize>,
    handles: Vec<Handle>,
    syncing: HashMap<u32, Syncing>,
    random: fastrand::Rng,
}

#[derive(Clone)]
enum Node {
    File(File),
    Dir(Dir),
}

#[derive(Clone, Default)]
struct File {
    cached: Pages,
    size: u64,
    stored: Pages,
    stored_size: u64,
    dirty: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct Dir {
    names: BTreeMap<String, usize>,
    /// The names at first, what was changed since, and how many of the changes are safe.
    first: BTreeMap<String, usize>,
    changes: Vec<Change>,
    synced: usize,
}

#[derive(Clone)]
enum Change {
    Add(String, usize),
    Remove(String),
    Move(String, String),
}

#[derive(Clone)]
struct Handle {
    node: usize,
    position: u64,
    appends: bool,
}

/// What a sync that is under way covers.
#[derive(Clone)]
struct Syncing {
    node: usize,
    pages: Vec<(u64, Page)>,
    size: u64,
    changes: usize,
}

impl Disk {
    /// All that lies in `root`, safe.
    pub(super) fn of(root: &Path) -> Self {
        let random = fastrand::Rng::with_seed(0);
        let open = HashMap::new();
        let handles = Vec::new();
        let syncing = HashMap::new();
        let mut disk = Self { nodes: vec![Node::Dir(Dir::default())], open, handles, syncing, random };
        disk.load(0, root);
        disk
    }

    /// The same disk, with the luck of this seed.
    pub(super) fn seeded(mut self, seed: u64) -> Self {
        self.random = fastrand::Rng::with_seed(seed);
        self
    }

    fn load(&mut self, dir: usize, path: &Path) {
        for entry in fs::read_dir(path).expect("a readable folder") {
            let entry = entry.expect("a readable folder");
            let node = match entry.file_type().expect("a type").is_dir() {
                true => self.add(Node::Dir(Dir::default())),
                false => {
                    self.add(Node::File(File::stored(&fs::read(entry.path()).expect("a readable file"))))
                }
            };
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let Node::Dir(parent) = &mut self.nodes[dir] else { unreachable!("it was made as one") };
            parent.names.insert(name.clone(), node);
            parent.first.insert(name, node);
            if let Node::Dir(_) = self.nodes[node] {
                self.load(node, &entry.path());
            }
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { fd, at, how } => self.open(*fd, at, *how),
            Op::Close(fd) => drop(self.open.remove(fd)),
            Op::Duplicate { from, to } => match self.open.get(from).copied() {
                Some(handle) => drop(self.open.insert(*to, handle)),
                None => drop(self.open.remove(to)),
            },
            Op::Seek { fd, to } => {
                if let Some(handle) = self.open.get(fd) {
                    self.handles[*handle].position = *to;
                }
            }
            Op::Write { fd, at, data } => self.write(*fd, *at, data),
            Op::Resize { fd, to } => {
                if let Some(file) = self.file(*fd) {
                    file.resize(*to);
                }
            }
            Op::Rename { from, to } => self.rename(from, to),
            Op::Remove(at) => {
                if let Some((dir, name)) = self.find(at) {
                    self.dir(dir).change(Change::Remove(name));
                }
            }
            Op::MakeDir(at) => {
                if let Some((dir, name)) = self.find(at) {
                    let node = self.add(Node::Dir(Dir::default()));
                    self.dir(dir).change(Change::Add(name, node));
                }
            }
            Op::SyncBegins { thread, fd } => self.begin_sync(*thread, *fd),
            Op::SyncEnds { thread, is_ok } => self.end_sync(*thread, *is_ok),
            Op::Say(_) => {}
        }
    }

    fn open(&mut self, fd: i32, at: &Place, how: How) {
        self.open.remove(&fd);
        let node = match self.find(at) {
            None if at.dir.is_some() => return,
            None => 0,
            Some((dir, name)) => match self.dir(dir).names.get(&name).copied() {
                Some(node) => node,
                None => {
                    assert!(how.create, "{at:?} was opened and never made");
                    let node = self.add(Node::File(File::default()));
                    self.dir(dir).change(Change::Add(name, node));
                    node
                }
            },
        };
        self.handles.push(Handle { node, position: 0, appends: how.append });
        self.open.insert(fd, self.handles.len() - 1);
        if how.truncate
            && let Some(file) = self.file(fd)
        {
            file.resize(0);
        }
    }

    fn write(&mut self, fd: i32, at: Option<u64>, data: &[u8]) {
        let Some(handle) = self.open.get(&fd).copied() else { return };
        let Handle { node, position, appends } = self.handles[handle];
        let Node::File(file) = &mut self.nodes[node] else { panic!("a folder was written to") };
        let from = at.unwrap_or(if appends { file.size } else { position });
        file.write(from, data);
        if at.is_none() {
            self.handles[handle].position = from + data.len() as u64;
        }
    }

    fn rename(&mut self, from: &Place, to: &Place) {
        let (Some((dir, from)), Some((into, to))) = (self.find(from), self.find(to)) else {
            panic!("{from:?} was moved in or out");
        };
        assert_eq!(dir, into, "names move within their folder");
        self.dir(dir).change(Change::Move(from, to));
    }

    fn begin_sync(&mut self, thread: u32, fd: i32) {
        let Some(node) = self.open.get(&fd).map(|handle| self.handles[*handle].node) else { return };
        let syncing = match &self.nodes[node] {
            Node::Dir(dir) => Syncing { node, pages: Vec::new(), size: 0, changes: dir.changes.len() },
            Node::File(file) => {
                let pages = file.dirty.iter().map(|at| (*at, file.page(*at))).collect();
                Syncing { node, pages, size: file.size, changes: 0 }
            }
        };
        self.syncing.insert(thread, syncing);
    }

    fn end_sync(&mut self, thread: u32, is_ok: bool) {
        let Some(Syncing { node, pages, size, changes }) = self.syncing.remove(&thread) else { return };
        match &mut self.nodes[node] {
            Node::Dir(dir) if is_ok => dir.synced = dir.synced.max(changes),
            Node::Dir(_) => {}
            Node::File(file) => {
                if is_ok {
                    file.stored_size = size;
                }
                for (at, page) in pages {
                    if file.cached.get(&at).is_none_or(|cached| Arc::ptr_eq(cached, &page)) {
                        file.dirty.remove(&at);
                    }
                    if is_ok || self.random.bool() {
                        file.stored.insert(at, page);
                    }
                }
            }
        }
    }

    fn file(&mut self, fd: i32) -> Option<&mut File> {
        let handle = self.open.get(&fd)?;
        match &mut self.nodes[self.handles[*handle].node] {
            Node::File(file) => Some(file),
            Node::Dir(_) => None,
        }
    }

    fn dir(&mut self, node: usize) -> &mut Dir {
        match &mut self.nodes[node] {
            Node::Dir(dir) => dir,
            Node::File(_) => panic!("a file is no folder"),
        }
    }

    /// The folder of a place, and its name there; `None` for the root, and below folders that are
    /// not recorded.
    fn find(&self, at: &Place) -> Option<(usize, String)> {
        let mut node = match at.dir {
            None => 0,
            Some(fd) => self.handles[*self.open.get(&fd)?].node,
        };
        let mut words = at.path.split('/').filter(|word| !word.is_empty() && *word != ".").peekable();
        loop {
            let word = words.next()?;
            if words.peek().is_none() {
                return Some((node, word.to_owned()));
            }
            let Node::Dir(dir) = &self.nodes[node] else { panic!("{at:?} leads through a file") };
            node = *dir.names.get(word).unwrap_or_else(|| panic!("{at:?} leads nowhere"));
        }
    }

    /// Lays out what the power cut leaves.
    pub(super) fn cut(mut self, to: &Path) {
        let kept = *self.random.choice(&[0.0, 0.5, 0.9, 1.0]).expect("there are some");
        let mut random = self.random.clone();
        self.lay_out(0, to, &mut |dir: &Dir| dir.after(random.usize(dir.synced..=dir.changes.len())), kept);
    }

    fn lay_out(
        &mut self,
        dir: usize,
        to: &Path,
        names: &mut impl FnMut(&Dir) -> BTreeMap<String, usize>,
        kept: f64,
    ) {
        for (name, node) in names(self.dir(dir)) {
            let path = to.join(name);
            match &self.nodes[node] {
                Node::Dir(_) => {
                    fs::create_dir(&path).expect("the image is new");
                    self.lay_out(node, &path, names, kept);
                }
                Node::File(file) => file.lay_out(&path, &mut self.random, kept),
            }
        }
    }

    /// Panics unless the folder holds exactly what the program sees of this disk.
    pub(super) fn assert_equals(mut self, root: &Path) {
        let image = tempfile::tempdir().expect("room for an image");
        self.lay_out(0, image.path(), &mut |dir: &Dir| dir.names.clone(), 2.0);
        assert_same(root, image.path());
    }
}

fn assert_same(real: &Path, image: &Path) {
    let list = |dir: &Path| -> BTreeSet<_> {
        fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    assert_eq!(list(real), list(image), "the recording misses something in {}", real.display());
    for name in list(real) {
        let real = real.join(&name);
        let image = image.join(&name);
        match real.is_dir() {
            true => assert_same(&real, &image),
            false => {
                let same = fs::read(&real).expect("a file") == fs::read(&image).expect("a file");
                assert!(same, "the recording does not explain {}", real.display());
            }
        }
    }
}

impl Dir {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// The names after this many changes.
    fn after(&self, changes: usize) -> BTreeMap<String, usize> {
        let mut names = self.first.clone();
        self.changes[..changes].iter().for_each(|change| change.apply(&mut names));
        names
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Add(name, node) => drop(names.insert(name.clone(), *node)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Move(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
        }
    }
}

impl File {
    fn stored(data: &[u8]) -> Self {
        let mut file = Self::default();
        file.write(0, data);
        file.dirty.clear();
        Self { stored: file.cached.clone(), stored_size: file.size, ..file }
    }

    fn page(&self, at: u64) -> Page {
        self.cached.get(&at).cloned().unwrap_or_else(|| Arc::new([0; PAGE]))
    }

    fn write(&mut self, from: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = from + done as u64;
            let start = usize::try_from(at % PAGE as u64).expect("less than a page");
            let part = (PAGE - start).min(data.len() - done);
            self.change(at / PAGE as u64)[start..start + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
        self.size = self.size.max(from + data.len() as u64);
    }

    /// The page for writing. A copy if a sync has it: the sync writes what it found.
    fn change(&mut self, at: u64) -> &mut [u8; PAGE] {
        self.dirty.insert(at);
        Arc::make_mut(self.cached.entry(at).or_insert_with(|| Arc::new([0; PAGE])))
    }

    fn resize(&mut self, to: u64) {
        if to < self.size {
            let border = to.div_ceil(PAGE as u64);
            let gone: Vec<u64> = self.cached.range(border..).map(|(at, _)| *at).collect();
            gone.into_iter().for_each(|at| self.change(at).fill(0));
            let rest = usize::try_from(to % PAGE as u64).expect("less than a page");
            if rest > 0 && self.cached.contains_key(&(to / PAGE as u64)) {
                self.change(to / PAGE as u64)[rest..].fill(0);
            }
        }
        self.size = to;
    }

    /// Writes the file as it is on the disk, with a share of what was not synced; all of it if
    /// `kept` is over 1.
    fn lay_out(&self, path: &Path, random: &mut fastrand::Rng, kept: f64) {
        let is_newest = kept > 1.0;
        let size = if is_newest || random.f64() < kept { self.size } else { self.stored_size };
        let mut pages = if is_newest { self.cached.clone() } else { self.stored.clone() };
        for at in self.dirty.iter().filter(|_| random.f64() < kept) {
            pages.insert(*at, self.page(*at));
        }
        let file = fs::File::create_new(path).expect("the image is new");
        for (at, page) in pages {
            let from = at * PAGE as u64;
            let length = PAGE.min(usize::try_from(size.saturating_sub(from)).unwrap_or(PAGE));
            if page[..length].iter().any(|byte| *byte != 0) {
                file.write_all_at(&page[..length], from).expect("room for an image");
            }
        }
        file.set_len(size).expect("room for an image");
    }
}
