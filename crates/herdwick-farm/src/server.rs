//! The server's machine: it polls a ring of each client, executes what it finds in its table, and
//! WRITEs a reply for each message. GETs by READ do not concern it.

use herdwick_fabric::{
    Completion, CqId, Local, Payload, Port, QpId, RegionId, Remote, SendOp, SendWr, Status,
    counters,
};
use herdwick_mem::{Span, WORD, Words};
use herdwick_read::{ClientId, Clients};
use herdwick_request::KEY_BYTES_MAX;

use crate::{
    layout::VALUE_BYTES_MAX,
    message::{Arrival, Control, Operation, ReplyCode, Ring, arrival, bytes_at, encode},
    table::{PutError, Table},
};

/// Completions taken by one call of [`Port::poll`].
const POLLED: usize = 32;

counters! {
    /// Counters of one [`ServerSide`].
    pub struct ServerCounters {
        /// GETs by message: clients whose READs could not settle.
        gets,
        /// PUTs.
        puts,
        /// DELETEs.
        deletes,
        /// Messages refused because of a length or an operation that no client sends.
        refused,
        /// Looks at a message of which not every word was visible.
        incomplete,
        /// Passes in which a client waited because its replies had no room.
        held,
        /// Clients whose queue pair failed.
        lost,
    }
}

/// What the machine needs to serve a client.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) qp: QpId,
    pub(crate) requests: Span,
    /// The client's memory for replies.
    pub(crate) replies: Remote,
    /// Our memory for replies that are too long to be inline, and its words.
    pub(crate) stage: (RegionId, Span),
}

#[derive(Debug)]
struct Client {
    attached: Attached,
    /// Messages executed.
    next: u64,
    /// Replies that are known to have left.
    completed: u64,
    failed: bool,
}

/// The machine.
pub struct ServerSide {
    table: Table,
    requests: Ring,
    replies: Ring,
    clients: Clients<Client>,
    cq: CqId,
    inline_bytes_max: usize,
    body: Vec<u64>,
    reply: Vec<u64>,
    value: Vec<u8>,
    counters: ServerCounters,
}

/// Depth of a client's send queue of replies: as many again as there can be unread ones, since those
/// that left are known by a later completion only.
pub(crate) const fn send_depth(window: usize) -> usize {
    2 * window
}

impl ServerSide {
    pub(crate) fn new(
        table: Table,
        (clients_max, window): (u16, usize),
        (cq, inline_bytes_max): (CqId, usize),
    ) -> Self {
        let geometry = *table.geometry();
        let words = (KEY_BYTES_MAX + VALUE_BYTES_MAX) / WORD + 3;
        Self {
            requests: Ring::requests(&geometry, window),
            replies: Ring::replies(&geometry, window),
            clients: Clients::new(clients_max),
            cq,
            inline_bytes_max,
            body: Vec::with_capacity(words),
            reply: Vec::with_capacity(words),
            value: vec![0; VALUE_BYTES_MAX],
            counters: ServerCounters::default(),
            table,
        }
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the table, to fill it.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Returns the clients in service.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.iter().count()
    }

    /// Returns the number of clients that there may be.
    pub(crate) fn clients_max(&self) -> usize {
        self.clients.most().into()
    }

    /// Returns a client whose queue pair has failed, to be detached.
    #[must_use]
    pub fn lost_client(&self) -> Option<ClientId> {
        let mut clients = self.clients.iter();
        clients.find(|(_, client)| client.failed).map(|(id, _)| id)
    }

    /// Takes a client into service; `None` if there are as many as there may be.
    pub(crate) fn attach(&mut self, attached: Attached) -> Option<ClientId> {
        let id = self.clients.next_id(|_| true)?;
        let client = Client {
            attached,
            next: 0,
            completed: 0,
            failed: false,
        };
        self.clients.insert(id, client);
        Some(id)
    }

    pub(crate) fn detach(&mut self, client: ClientId) -> Option<Attached> {
        let client = self.clients.remove(client)?;
        Some(client.attached)
    }

    /// Executes what has arrived, at most a window of each client, and WRITEs the replies. Returns how
    /// many messages there were.
    pub fn poll<P: Port>(&mut self, port: &mut P) -> usize {
        self.completions(port);
        let mut messages = 0;
        for place in 0..self.clients.most() {
            for _ in 0..self.requests.window {
                if !self.serve(port, place) {
                    break;
                }
                messages += 1;
            }
        }
        messages
    }

    /// Executes the next message of a client; returns whether there was one.
    #[inline]
    fn serve<P: Port>(&mut self, port: &mut P, place: u16) -> bool {
        let Some((_, client)) = self.clients.at(place).filter(|(_, it)| !it.failed) else {
            return false;
        };
        let number = client.next;
        let requests = &client.attached.requests;
        // Pairs with the store of a request's last word, its control word; where a device promises no
        // order, the checksum decides.
        let load = |word| requests.load_acquire(word);
        let arrived = arrival(&self.requests, number, &load, &mut self.body);
        if arrived == Arrival::Nothing {
            return false;
        }
        // Before it is executed: a message that has no room for its reply stays where it is.
        if number - client.completed >= send_depth(self.requests.window) as u64 {
            self.counters.held += 1;
            return false;
        }
        let lap = self.replies.lap(number);
        match arrived {
            Arrival::Message(control) => self.execute(control, lap),
            Arrival::Malformed => self.refuse(lap),
            Arrival::Incomplete | Arrival::Nothing => {
                self.counters.incomplete += 1;
                return false;
            }
        }
        self.post_reply(port, place);
        true
    }

    /// Executes the message in `body`, and lays out its reply.
    fn execute(&mut self, control: Control, lap: u8) {
        let mut key = [0; KEY_BYTES_MAX];
        let key_words = control.key_len.div_ceil(WORD);
        let operation = Operation::ALL
            .into_iter()
            .find(|operation| *operation as u8 == control.code);
        let fits = self
            .table
            .geometry()
            .admits(control.key_len, control.value_len);
        let (Some(operation), true, 1..) = (operation, fits, control.key_len) else {
            return self.refuse(lap);
        };
        // A copy, since the client can change its cell at any time; `body` is one too.
        let key = &mut key[..control.key_len];
        bytes_at(&self.body, 0, key);
        let (mut code, mut len) = (ReplyCode::Done, 0);
        match operation {
            Operation::Get => {
                self.counters.gets += 1;
                match self.table.get(key, &mut self.value) {
                    Some(found) => len = found,
                    None => code = ReplyCode::NotFound,
                }
            }
            Operation::Put => {
                self.counters.puts += 1;
                let value = &mut self.value[..control.value_len];
                bytes_at(&self.body, key_words, value);
                code = match self.table.put(key, value) {
                    Ok(()) => ReplyCode::Done,
                    Err(PutError::Full) => ReplyCode::Full,
                    Err(PutError::Length) => ReplyCode::Refused,
                };
            }
            Operation::Delete => {
                self.counters.deletes += 1;
                if !self.table.delete(key) {
                    code = ReplyCode::NotFound;
                }
            }
        }
        encode(&mut self.reply, lap, code as u8, &[], &self.value[..len]);
    }

    fn refuse(&mut self, lap: u8) {
        self.counters.refused += 1;
        encode(&mut self.reply, lap, ReplyCode::Refused as u8, &[], &[]);
    }

    /// WRITEs the reply to the client's next message, and counts that as executed.
    fn post_reply<P: Port>(&mut self, port: &mut P, place: u16) {
        let Some((id, client)) = self.clients.at(place) else {
            return;
        };
        let first = self.replies.end(client.next) - self.reply.len();
        let payload = if self.reply.len() * WORD <= self.inline_bytes_max {
            Payload::Words(&self.reply)
        } else {
            let (region, span) = &client.attached.stage;
            span.write_words(first, &self.reply);
            Payload::Region(Local {
                region: *region,
                offset: first * WORD,
                len: self.reply.len() * WORD,
            })
        };
        client.next += 1;
        let to = client.attached.replies.offset((first * WORD) as u64);
        let op = SendOp::Write {
            payload,
            to,
            imm: None,
        };
        // Half a window without a completion leaves room for the other half.
        let signaled = client
            .next
            .is_multiple_of(self.replies.window.div_ceil(2) as u64);
        let wr = SendWr {
            wr_id: id.wr_id(client.next as u32),
            op,
            signaled,
            solicited: false,
            fence: false,
        };
        if port.post_send(client.attached.qp, &[wr]).is_err() {
            client.failed = true;
            self.counters.lost += 1;
        }
    }

    fn completions<P: Port>(&mut self, port: &mut P) {
        let mut done = [Completion::BLANK; POLLED];
        loop {
            let count = port.poll(self.cq, &mut done);
            done[..count].iter().for_each(|it| self.completed(it));
            if count < POLLED {
                return;
            }
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let (id, number) = ClientId::of(completion.wr_id);
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        if completion.status == Status::Success {
            // The low half of a count that is ahead of the known one by two windows at most.
            let more = number.wrapping_sub(client.completed as u32);
            client.completed += u64::from(more);
        } else if !client.failed {
            client.failed = true;
            self.counters.lost += 1;
        }
    }
}

impl std::fmt::Debug for ServerSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerSide")
            .field("clients", &self.clients())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
