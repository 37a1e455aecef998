//! A server and its clients in one process: what a session carries between processes is handed over here.

use herdwick_fabric::Device;

use super::{ClientEnd, ClientOptions, ServerEnd, SetupError, pd_room};
use crate::ClientId;

impl<D: Device> ServerEnd<D> {
    /// Connects a client on another device of this process.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn join_in_process(
        &mut self,
        client: D,
        options: &ClientOptions,
    ) -> Result<(ClientEnd<D>, ClientId), SetupError> {
        let pd = self.device.create_pd_for(&mut self.port, &pd_room())?;
        let ticket = self.device.export_pd(&mut self.port, pd)?;
        let (id, grant) = self.admit(pd)?;
        let mut port = ClientEnd::open_port(&client)?;
        let pd = client.import_pd(&mut port, ticket)?;
        let (end, accept) = ClientEnd::open(client, (port, pd), grant, options)?;
        self.connect(id, &accept)?;
        Ok((end, id))
    }
}
