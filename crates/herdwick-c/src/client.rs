//! Clients of one server or several, `herdwick_client`: how they begin and end.

use std::ffi::{CString, c_char};

use herdwick::{Address, Client, Cluster, Discovery, DiscoveryError, Item, Node};

use crate::{
    bytes::{elements, some_text},
    handle::{Handle, create, on, take},
    options::{OptionsHandle, copy, deadline},
    status::{Failure, Status, not_dialled},
};

/// A client as C holds it.
pub(crate) type ClientHandle = Handle<Held>;

/// A client, and what its last call has returned to C.
pub(crate) struct Held {
    pub(crate) servers: Servers,
    pub(crate) item: Option<Item>,
    pub(crate) items: Vec<Option<Item>>,
    pub(crate) text: CString,
}

/// One server or several.
pub(crate) enum Servers {
    One(Box<Client>, Address),
    Several(Box<Cluster>),
}

impl Held {
    fn new(servers: Servers) -> Self {
        Self {
            servers,
            item: None,
            items: Vec::new(),
            text: CString::default(),
        }
    }
}

/// Connects to one server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_connect(
    address: *const c_char,
    options: *const OptionsHandle,
    client: *mut *mut ClientHandle,
) -> Status {
    let make = || {
        // SAFETY: the caller's promise.
        let (text, options) = unsafe { (some_text(address)?, copy(options)?) };
        let address: Address = text.parse()?;
        let connected = Client::connect_with(text, options.client)?;
        Ok(Held::new(Servers::One(connected.into(), address)))
    };
    // SAFETY: the caller's promise.
    unsafe { create(client, make) }
}

/// Makes a client of several servers; none is dialled yet.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_connect_cluster(
    servers: *const *const c_char,
    count: usize,
    options: *const OptionsHandle,
    client: *mut *mut ClientHandle,
) -> Status {
    let make = || {
        // SAFETY: the caller's promise, for the array and for each text.
        let (servers, options) = unsafe { (elements(servers, count)?, copy(options)?) };
        let nodes = servers.iter().map(|server| {
            // SAFETY: likewise.
            let server = unsafe { some_text(*server) }?;
            Ok(server.parse::<Node>()?)
        });
        let nodes = nodes.collect::<Result<_, Failure>>()?;
        let cluster = Cluster::new(nodes, options)?;
        Ok(Held::new(Servers::Several(cluster.into())))
    };
    // SAFETY: the caller's promise.
    unsafe { create(client, make) }
}

/// Makes a client of the servers that `source` lists.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_discover(
    source: *const c_char,
    options: *const OptionsHandle,
    client: *mut *mut ClientHandle,
) -> Status {
    let make = || {
        // SAFETY: the caller's promise.
        let (source, options) = unsafe { (some_text(source)?, copy(options)?) };
        let discovery = match source.split_once(':') {
            Some(("dns", name)) => Discovery::Dns(name.parse()?),
            Some(("config", address)) => Discovery::Config(address.parse()?),
            _ => {
                return Err(Failure::usage(
                    "servers are listed by dns:HOST:PORT or config:HOST:PORT",
                ));
            }
        };
        let found = Cluster::discover(discovery, options);
        let cluster = found.map_err(|error| {
            let status = match &error {
                DiscoveryError::Dial(reason) => not_dialled(reason),
                DiscoveryError::Reply(_) | DiscoveryError::Etcd(_) => Status::Server,
                DiscoveryError::List(_) => Status::Usage,
            };
            Failure::new(status, error.to_string())
        })?;
        Ok(Held::new(Servers::Several(cluster.into())))
    };
    // SAFETY: the caller's promise.
    unsafe { create(client, make) }
}

/// Closes a client, and frees what it has returned.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_client_free(client: *mut ClientHandle) {
    // SAFETY: the caller's promise.
    unsafe { take(client) };
}

/// Sets how long each later call may take.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_set_deadline(
    client: *mut ClientHandle,
    milliseconds: u32,
) -> Status {
    let set = |held: &mut Held| {
        match &mut held.servers {
            Servers::One(client, _) => client.set_deadline(deadline(milliseconds)),
            Servers::Several(cluster) => cluster.set_deadline(deadline(milliseconds)),
        }
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(client, set) }
}
