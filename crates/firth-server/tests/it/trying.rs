//! The page to try sources, docs/connect.md: its commands run as they stand there, with the
//! PostgreSQL of Debian, and a committed row arrives in a browser.

use crate::console::script;
use crate::world::{PATIENCE, Value, json, run, stdout};
use firth_testkit::wait::until;
use firth_testkit::{cannot_run, in_own_network};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

const GUIDE: &str = include_str!("../../../../docs/connect.md");

/// What the page asks to be run, command by command, and the address that it says to open.
fn commands() -> (Vec<&'static str>, &'static str) {
    let section = GUIDE.split("## Try it").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let page = section.split("Open `").nth(1).unwrap().split('`').next().unwrap();
    (blocks.flat_map(str::lines).collect(), page)
}

/// A shell whose PostgreSQL is a new one: the folders of Debian's packages are empty in it. It ends
/// with all that it started.
struct Shell {
    child: Child,
    input: ChildStdin,
}

impl Shell {
    fn start(dir: &Path) -> Self {
        // Without this folder `service` calls the package's script itself.
        let fresh = "mkdir -p /run/postgresql /run/systemd
            for dir in /etc/postgresql /var/lib/postgresql /var/log/postgresql /run/postgresql /run/systemd; do
              mount -t tmpfs -o mode=755 tmpfs $dir
            done
            mount -t tmpfs -o mode=1777 tmpfs /dev/shm
            chown postgres:postgres /etc/postgresql /var/lib/postgresql /run/postgresql
            pg_createcluster --start $(ls /usr/lib/postgresql | sort -n | tail -1) main
            exec sh";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--ipc", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "sh", "-ec", fresh]).current_dir(dir);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FIRTH_"))
        {
            command.env_remove(name);
        }
        let program = Path::new(env!("CARGO_BIN_EXE_firth")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let logs = std::fs::File::create(dir.join("logs")).unwrap();
        command.env("PATH", path).stdin(Stdio::piped());
        command.stdout(logs.try_clone().unwrap()).stderr(logs);
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        Self { child, input }
    }

    fn run(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that holds what the page needs of the repository.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    for part in ["examples", "crates"] {
        symlink(root.join(part), dir.path().join(part)).unwrap();
    }
    dir
}

/// Whether the namespaces that the shell needs may be made here.
fn may_mount() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]);
    command.args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).stderr(Stdio::null());
    let may = command.status().is_ok_and(|status| status.success());
    if !may {
        cannot_run("mount", "folders of a test's own cannot be mounted here");
    }
    may
}

#[test]
fn the_page_to_try_names_five_commands() {
    let (commands, page) = commands();
    assert_eq!(commands.len(), 5, "{commands:?}");
    assert!(page.starts_with("http://127.0.0.1:8000/examples/shop"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_bring_a_committed_row_into_a_browser() {
    if !may_mount()
        || !in_own_network("trying::the_commands_of_the_page_bring_a_committed_row_into_a_browser")
    {
        return;
    }
    let (commands, page) = commands();
    let Some(mut browser) = script("example.mjs") else { return };
    let dir = copy();
    let logs = || std::fs::read_to_string(dir.path().join("logs")).unwrap_or_default();
    let mut shell = Shell::start(dir.path());
    // A reader of the page types the next command once the last one shows that it works.
    let ports = [5432, 7171, 7272, 8000];
    for (command, port) in commands.iter().zip(ports) {
        shell.run(&format!("{command}\necho \"step {port}\" done: $?"));
        let is_done = async || {
            let is_run = logs().contains(&format!("step {port} done: 0"));
            assert!(!logs().contains("done: 1"), "{command}: {}", logs());
            is_run && TcpStream::connect(("127.0.0.1", port)).is_ok()
        };
        until(PATIENCE, format!("{command} works; {}", logs()), is_done).await;
    }
    let streams = async || {
        let listed = run(&["connect", "list", "--json", "--server", "http://127.0.0.1:7171"]);
        stdout(&listed).contains(r#""state":"streaming""#)
    };
    until(PATIENCE, "the source streams", streams).await;
    let mut browser = browser.args([page, "insert 2 tea 150"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(browser.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "live", "{}", logs());
    shell.run(commands[4]);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(browser.wait().unwrap().success() && rest.contains("console ok"), "{rest}\n{}", logs());
    let asked = run(&["connect", "status", "shop", "--json", "--server", "http://127.0.0.1:7171"]);
    let status: Value = serde_json::from_str(&stdout(&asked)).unwrap();
    assert_eq!(status["by_operation"], json!({ "insert": 1, "snapshot": 1 }), "{status}");
}
