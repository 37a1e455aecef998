//! The client's objects on a port.

use std::{sync::mpsc::Receiver, time::Duration};

use herdwick_fabric::{
    ControlError, CqSpec, Device, OpenError, PdId, PortLimits, QpSpec, Transport,
};
use herdwick_read::{Reader, ReaderOptions, RecvBuffers};

use super::{Accept, Grant, OptionsError, SetupError, TableGrant, buffers};
use crate::{
    Client,
    calls::{CALL_DEPTH, CallObjects, Calls, REPLY_RECVS},
    judge::Lookups,
    layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
    message::{CALLS_MAX, MESSAGE_BYTES_MAX, PARTS_MAX},
};

/// A client's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// GETs in flight.
    pub window: usize,
    /// Longest value that is READ; a longer one is asked for by SEND.
    pub read_value_max: usize,
    /// Time after which a server that does not answer a SEND is given up.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            window: 32,
            read_value_max: VALUE_BYTES_MAX,
            timeout: Duration::from_secs(5),
        }
    }
}

/// A client's port and machine.
pub struct ClientEnd<D: Device> {
    /// The device.
    pub device: D,
    /// The port.
    pub port: D::Port,
    /// The machine.
    pub client: Client,
    pd: PdId,
    /// Tables that have moved, from a server of this process.
    pub(super) handover: Option<Receiver<TableGrant>>,
}

impl<D: Device> ClientEnd<D> {
    /// Makes a client's objects, and returns what the server has to know of them. `pd` is the client's
    /// side of the domain that the server made.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(
        device: D,
        (mut port, pd): (D::Port, PdId),
        grant: Grant,
        options: &ClientOptions,
    ) -> Result<(Self, Accept), SetupError> {
        let read_value_max = options.read_value_max.min(VALUE_BYTES_MAX);
        let step_bytes = KEY_BYTES_MAX + read_value_max;
        let reads = ReaderOptions {
            lookups: options.window,
            step_bytes,
            bytes_outstanding: step_bytes.max(1 << 20),
            ..ReaderOptions::default()
        };
        let reader = Reader::create(&device, &mut port, pd, &reads).map_err(OptionsError::from)?;
        let objects = call_objects(&device, &mut port, pd)?;
        device.import_region(&mut port, pd, grant.table.ticket)?;
        device.import_region(&mut port, pd, grant.extents_ticket)?;
        device.connect(&mut port, objects.qp, &grant.requests)?;
        device.connect(&mut port, reader.qp(), &grant.reads)?;
        let accept = Accept {
            requests: device.endpoint(&port, objects.qp)?,
            reads: device.endpoint(&port, reader.qp())?,
        };
        let view = grant.table.view;
        let lookups = Lookups::new((options.window, read_value_max), view, grant.extents);
        let calls = Calls::new(&mut port, objects, options.timeout)?;
        let client = Client::new(reader, lookups, (view, grant.hash_key), calls);
        Ok((
            Self {
                device,
                port,
                client,
                pd,
                handover: None,
            },
            accept,
        ))
    }

    /// Opens a port for [`ClientEnd::open`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_port(device: &D) -> Result<D::Port, OpenError> {
        device.open_port(&PortLimits {
            pds: 1,
            qps: 2,
            cqs: 3,
            regions: 3,
            addresses: 0,
        })
    }

    /// READs the table of this grant from now on.
    ///
    /// # Errors
    /// [`SetupError::Import`].
    pub fn adopt(&mut self, grant: TableGrant) -> Result<(), SetupError> {
        let Self {
            device,
            port,
            client,
            pd,
            ..
        } = self;
        device.import_region(port, *pd, grant.ticket)?;
        client.follow(grant.view);
        Ok(())
    }
}

fn call_objects<D: Device>(
    device: &D,
    port: &mut D::Port,
    pd: PdId,
) -> Result<CallObjects, ControlError> {
    let send_cq = device.create_cq(port, &CqSpec { depth: CALL_DEPTH })?;
    let recv_cq = device.create_cq(port, &CqSpec { depth: REPLY_RECVS })?;
    let spec = QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq,
        recv_cq,
        send_depth: CALL_DEPTH,
        recv_depth: REPLY_RECVS,
    };
    let qp = device.create_qp(port, &spec)?;
    let replies = device.allocate_memory(port, pd, &buffers(REPLY_RECVS))?;
    Ok(CallObjects {
        qp,
        send_cq,
        recv_cq,
        requests: device.allocate_memory(port, pd, &buffers(CALLS_MAX * PARTS_MAX))?,
        replies: RecvBuffers::new(qp, replies, MESSAGE_BYTES_MAX),
    })
}
