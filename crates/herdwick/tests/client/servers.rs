//! Servers for the tests: a stock memcached, and a scripted one that misbehaves.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
};

use herdwick::Client;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A memcached on a unix socket; it is killed on drop.
pub(crate) struct Memcached {
    child: Child,
    path: PathBuf,
}

impl Memcached {
    /// Starts one on a socket of its own. Prints a note and returns `None` if memcached is not
    /// installed.
    pub(crate) fn start() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-{}-{number}.sock", std::process::id());
        Self::start_at(std::env::temp_dir().join(name))
    }

    /// Starts one on this socket, and waits until it answers.
    pub(crate) fn start_at(path: PathBuf) -> Option<Self> {
        let mut command = Command::new("memcached");
        command
            .args(["-u", "root", "-t", "1", "-s"])
            .arg(&path)
            .stdout(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                let server = Self { child, path };
                while Client::connect(&server.address()).is_err() {
                    thread::yield_now();
                }
                Some(server)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: there is no memcached here (apt-get install memcached)");
                None
            }
            Err(error) => panic!("memcached does not start: {error}"),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// Stops the process and waits until it has stopped: a signal takes effect later.
    pub(crate) fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Kills the process (SIGKILL) and returns its path for a successor.
    pub(crate) fn kill(mut self) -> PathBuf {
        self.end();
        std::mem::take(&mut self.path)
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.end();
        if self.path != Path::new("") {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A server that follows a script: one list of replies for each connection, in order. Each reply
/// follows one request line; after the last one the connection is closed. It records the lines it
/// reads.
pub(crate) struct Script {
    pub(crate) address: String,
    thread: JoinHandle<Vec<Vec<String>>>,
}

impl Script {
    pub(crate) fn start(connections: &'static [&'static [&'static [u8]]]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let run = move || {
            let serve = |replies| play(listener.accept().unwrap().0, replies);
            connections.iter().copied().map(serve).collect()
        };
        Self {
            address,
            thread: thread::spawn(run),
        }
    }

    /// Returns the request lines of each connection.
    pub(crate) fn asked(self) -> Vec<Vec<String>> {
        self.thread.join().unwrap()
    }
}

fn play(stream: TcpStream, replies: &[&[u8]]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut reader = BufReader::new(&stream);
    for reply in replies {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        lines.push(line.trim_end().to_owned());
        (&stream).write_all(reply).unwrap();
    }
    lines
}
