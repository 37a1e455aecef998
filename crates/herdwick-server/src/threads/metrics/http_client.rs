//! One client of the metrics page: the subset of HTTP/1.1 that a scrape needs. One request and one
//! response for each connection. Request size, headers and time are bounded.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    time::Duration,
};

use httparse::{EMPTY_HEADER, Request, Status};
use mio::net::TcpStream;

/// Longest request in bytes, including its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Largest number of headers.
const HEADERS_MAX: usize = 64;

/// A client's connection.
pub(super) struct HttpClient {
    stream: TcpStream,
    came: Duration,
    state: State,
    /// The request, then the response.
    bytes: Vec<u8>,
}

enum State {
    /// The request is incomplete.
    Reading,
    /// Waiting for the page.
    Waiting {
        /// A HEAD request: the response has no body.
        head: bool,
    },
    /// This many bytes of the response have been written.
    Writing(usize),
    /// The response is sent. The client closes first: closing with unread input would reset the
    /// connection and could discard the response.
    Leaving,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpStep {
    Stays,
    Gone,
}

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpResponse {
    Page { head: bool },
    Fixed(&'static str, &'static str),
}

const NOT_HTTP: HttpResponse = HttpResponse::Fixed("400 Bad Request", "this is no HTTP request\n");
const TOO_LONG: HttpResponse = HttpResponse::Fixed(
    "431 Request Header Fields Too Large",
    "a request has at most 64 headers and 8 KiB\n",
);
const METHOD: HttpResponse =
    HttpResponse::Fixed("405 Method Not Allowed", "GET and HEAD are served\n");
const ELSEWHERE: HttpResponse = HttpResponse::Fixed("404 Not Found", "metrics are at /metrics\n");

impl HttpClient {
    pub(super) fn new(stream: TcpStream, came: Duration) -> Self {
        Self {
            stream,
            came,
            state: State::Reading,
            bytes: Vec::new(),
        }
    }

    /// Returns when it connected.
    pub(super) fn came(&self) -> Duration {
        self.came
    }

    /// Returns whether it waits for the page.
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Responds with the page, if it waits for one.
    pub(super) fn hand(&mut self, page: &str) {
        if let State::Waiting { head } = self.state {
            let kind = prometheus::TEXT_FORMAT;
            // HEAD states the length of the page that GET would have.
            self.respond("200 OK", kind, if head { "" } else { page }, page.len());
        }
    }

    /// Reads and writes as far as possible without blocking.
    pub(super) fn step(&mut self) -> HttpStep {
        if matches!(self.state, State::Reading) && self.read() == HttpStep::Gone {
            return HttpStep::Gone;
        }
        match self.state {
            State::Reading | State::Waiting { .. } => HttpStep::Stays,
            State::Writing(_) => self.write(),
            State::Leaving => self.leave(),
        }
    }

    fn read(&mut self) -> HttpStep {
        let mut chunk = [0; 2048];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return HttpStep::Gone,
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return HttpStep::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return HttpStep::Gone,
            }
            // Parsed from the beginning each time: it is little longer than `REQUEST_BYTES_MAX` at
            // most.
            match answer(&self.bytes) {
                None => {}
                Some(HttpResponse::Page { head }) => {
                    self.state = State::Waiting { head };
                    return HttpStep::Stays;
                }
                Some(HttpResponse::Fixed(status, body)) => {
                    self.respond(status, "text/plain; charset=utf-8", body, body.len());
                    return HttpStep::Stays;
                }
            }
        }
    }

    fn respond(&mut self, status: &str, kind: &str, body: &str, len: usize) {
        let response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        self.bytes = response.into_bytes();
        self.state = State::Writing(0);
    }

    fn write(&mut self) -> HttpStep {
        while let State::Writing(from) = self.state {
            match self.stream.write(&self.bytes[from..]) {
                Ok(count) if from + count < self.bytes.len() => {
                    self.state = State::Writing(from + count);
                }
                Ok(_) => {
                    // Fails only if the peer has disconnected, which the next read reports.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.bytes = Vec::new();
                    self.state = State::Leaving;
                    return self.leave();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return HttpStep::Stays,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return HttpStep::Gone,
            }
        }
        HttpStep::Stays
    }

    /// Discards further input, a bounded amount in each step.
    fn leave(&mut self) -> HttpStep {
        let mut discarded = [0; 4096];
        match self.stream.read(&mut discarded) {
            Ok(0) => HttpStep::Gone,
            Ok(_) => HttpStep::Stays,
            Err(error) if error.kind() == ErrorKind::WouldBlock => HttpStep::Stays,
            Err(_) => HttpStep::Gone,
        }
    }
}

/// Returns the response to the request in `bytes`; `None`: it is incomplete.
fn answer(bytes: &[u8]) -> Option<HttpResponse> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Some(TOO_LONG),
        Err(_) => return Some(NOT_HTTP),
        Ok(Status::Complete(_)) => {}
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(METHOD),
    };
    let path = request.path.unwrap_or_default();
    // Prometheus may add a query, which has no meaning here.
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Some(match path {
        "/metrics" => HttpResponse::Page { head },
        _ => ELSEWHERE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn http_requests_get_the_page_or_the_right_status() {
        let page = |head| Some(HttpResponse::Page { head });
        assert_eq!(
            answer(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            page(false)
        );
        assert_eq!(answer(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"), page(false));
        assert_eq!(answer(b"HEAD /metrics HTTP/1.1\r\n\r\n"), page(true));
        assert_eq!(answer(b"GET / HTTP/1.1\r\n\r\n"), Some(ELSEWHERE));
        assert_eq!(answer(b"POST /metrics HTTP/1.1\r\n\r\n"), Some(METHOD));
        assert_eq!(answer(b"GET /metrics HTTP/1.1\r\nHost"), None);
        assert_eq!(answer(b""), None);
        assert_eq!(answer(b"\x16\x03\x01\x00"), Some(NOT_HTTP));
        let endless = [&b"GET /"[..], &[b'x'; REQUEST_BYTES_MAX]].concat();
        assert_eq!(answer(&endless), Some(TOO_LONG));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(answer(many.as_bytes()), Some(TOO_LONG));
    }

    proptest! {
        #[test]
        fn any_http_bytes_get_a_stable_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let early = answer(&bytes);
            // Further bytes do not change a response.
            let more = answer(&[&bytes[..], b" HTTP/1.1\r\n\r\n"].concat());
            prop_assert!(early.is_none() || early == more);
        }
    }
}
