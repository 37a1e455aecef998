//! A scripted HTTP server: what it is asked, and an answer for each request.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

/// A server that hands each request to the test, which writes the answer.
pub(super) struct Scripted {
    pub(super) endpoint: String,
    asked: Receiver<ScriptedRequest>,
}

/// A request: its path, its body, and the connection for the answer.
pub(super) struct ScriptedRequest {
    pub(super) path: String,
    pub(super) body: String,
    stream: TcpStream,
}

impl Scripted {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let (sender, asked) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if take(stream, &sender).is_none() {
                    return;
                }
            }
        });
        Self { endpoint, asked }
    }

    /// Waits for the next request, which has to be to `path`.
    pub(super) fn next(&self, path: &str) -> ScriptedRequest {
        let asked = self.any();
        assert_eq!(asked.path, path);
        asked
    }

    /// Waits for the next request.
    pub(super) fn any(&self) -> ScriptedRequest {
        self.asked.recv().unwrap()
    }
}

fn take(stream: TcpStream, sender: &Sender<ScriptedRequest>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut len = 0;
    while line != "\r\n" && !line.is_empty() {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(text) = line.strip_prefix("Content-Length: ") {
            len = text.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    let asked = ScriptedRequest { path, body, stream };
    sender.send(asked).ok()
}

impl ScriptedRequest {
    /// Answers by a body of known length.
    pub(super) fn answer(self, body: &str) {
        self.raw(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Sends these bytes, and closes the connection.
    pub(super) fn raw(mut self, bytes: &str) {
        // A client that has seen enough may have left.
        let _ = self.stream.write_all(bytes.as_bytes());
    }

    /// Begins an answer in chunks.
    pub(super) fn stream(mut self) -> Chunks {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.stream.write_all(head).unwrap();
        Chunks(self.stream)
    }
}

/// An answer that goes on.
pub(super) struct Chunks(TcpStream);

impl Chunks {
    pub(super) fn send(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes()).unwrap();
    }
}
