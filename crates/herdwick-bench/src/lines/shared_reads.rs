//! READs of memory that all clients share: its region in one client's domain, and the connection of that
//! client's reader.

use herdwick_fabric::{Access, CqId, Device, PdId, QpSpec, Remote, Scope, SharedMemory, Transport};
use herdwick_herd::SetupError;
use herdwick_read::Reader;

use super::endpoints::EndpointError;

/// Registers `memory` in the server's domain of a client, imports the region at the client, and connects its
/// reader with a queue pair of the server. `cq` is that queue pair's; nothing completes there.
pub(super) fn share<D: Device, L>(
    (server, port, there): (&D, &mut D::Port, PdId),
    (client, client_port, here): (&D, &mut D::Port, PdId),
    (memory, cq): (&SharedMemory, CqId),
    reader: &Reader<L>,
) -> Result<Remote, EndpointError> {
    let region = server.register_shared(port, there, memory, Access::READ, Scope::Pd)?;
    let ticket = server.export_region(port, region)?;
    let imported = client.import_region(client_port, here, ticket);
    imported.map_err(SetupError::from)?;
    let qp = server.create_qp(
        port,
        &QpSpec {
            pd: there,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 1,
            recv_depth: 0,
        },
    )?;
    let ends = (
        server.endpoint(port, qp)?,
        client.endpoint(client_port, reader.qp())?,
    );
    let connected = server.connect(port, qp, &ends.1);
    connected.map_err(SetupError::from)?;
    let connected = client.connect(client_port, reader.qp(), &ends.0);
    connected.map_err(SetupError::from)?;
    Ok(server.remote(port, region)?)
}
