//! A server and its clients in one process: what a session carries between processes is handed over here.

use herdwick_fabric::{Device, Port};

use crate::{ClientEnd, ClientId, ClientTerms, ServerEnd, SetupError};

impl<P: Port> ServerEnd<P> {
    /// Connects a client on `client`, another device of this process than the server's `device`.
    ///
    /// # Errors
    /// [`SetupError`]; nothing is kept.
    pub fn join_in_process<D: Device<Port = P>>(
        &mut self,
        (device, client): (&D, &D),
        terms: &ClientTerms,
    ) -> Result<(ClientEnd<P>, ClientId), SetupError> {
        let (resources, grant) = self.grant(device)?;
        let opened = ClientEnd::open(client, terms, grant);
        if opened.is_err() {
            self.withdraw(device, resources)?;
        }
        let (end, accept) = opened?;
        let id = self.admit(device, resources, &accept)?;
        Ok((end, id))
    }
}
