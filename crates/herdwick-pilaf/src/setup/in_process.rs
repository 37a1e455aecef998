//! A server and its clients in one process: what a session carries between processes is handed over here.

use std::sync::mpsc;

use herdwick_fabric::{Device, PdId};

use super::{ClientEnd, ClientOptions, ServerEnd, SetupError, pd_room};
use crate::ClientId;

impl<D: Device> ServerEnd<D> {
    /// Connects a client on another device of this process, which is given the table when it moves
    /// ([`ClientEnd::follow_in_process`]).
    ///
    /// # Errors
    /// [`SetupError`]; nothing is kept.
    pub fn join_in_process(
        &mut self,
        client: D,
        options: &ClientOptions,
    ) -> Result<(ClientEnd<D>, ClientId), SetupError> {
        let pd = self.device.create_pd_for(&mut self.port, &pd_room())?;
        let joined = self.join_in_domain(pd, client, options);
        if joined.is_err() {
            match self.clients.iter().find(|client| client.pd == pd) {
                Some(client) => self.remove(client.id),
                // The objects that were made go with it.
                None => self.device.destroy_pd(&mut self.port, pd)?,
            }
        }
        joined
    }

    fn join_in_domain(
        &mut self,
        pd: PdId,
        client: D,
        options: &ClientOptions,
    ) -> Result<(ClientEnd<D>, ClientId), SetupError> {
        let ticket = self.device.export_pd(&mut self.port, pd)?;
        let (id, grant) = self.admit(pd)?;
        let mut port = ClientEnd::open_port(&client)?;
        let pd = client.import_pd(&mut port, ticket)?;
        let (mut end, accept) = ClientEnd::open(client, (port, pd), grant, options)?;
        self.connect(id, &accept)?;
        let (handover, moved) = mpsc::channel();
        self.handovers.push((id, handover));
        end.handover = Some(moved);
        Ok((end, id))
    }
}

impl<D: Device> ClientEnd<D> {
    /// Follows the table of a server of this process, if it has moved.
    ///
    /// # Errors
    /// [`SetupError::Import`].
    #[inline]
    pub fn follow_in_process(&mut self) -> Result<(), SetupError> {
        if self.client.follows() {
            return Ok(());
        }
        let moved = self.handover.iter().flat_map(mpsc::Receiver::try_iter);
        // Only the newest: tables between have moved as well.
        moved.last().map_or(Ok(()), |grant| self.adopt(grant))
    }
}
