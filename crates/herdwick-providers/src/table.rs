//! The table of providers, and what is read from it: of a fabric, of options, of a device.

use std::{fmt, io};

use herdwick_fabric::{Counter, PdRoom};
use herdwick_herd::hello::FabricWords;

use crate::{
    any_device::AnyDevice,
    check::Checks,
    fabric::Fabric,
    options::{ListenOptions, Wanted},
    providers,
    row::{ClientDeviceError, Description, Dial, End, ListenError, ListenHost, Row},
};

/// Makes the table from the list of providers.
macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident: $module:ident, $device:ty, $port:ty;)*) => {
        /// The table, in the order of [`Fabric`].
        // In the order of the list, so that a rank is an index.
        static ROWS: [&Row; Fabric::ALL.len()] = [$(&crate::$module::ROW),*];
    };
}

providers!(rows);

impl Fabric {
    /// Returns how every fabric appears in hellos.
    #[must_use]
    pub fn all_words() -> [FabricWords; Self::ALL.len()] {
        Self::ALL.map(|fabric| *fabric.words())
    }

    fn row(self) -> &'static Row {
        ROWS[self.rank()]
    }

    /// Returns the fabric of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fabric| fabric.name() == name)
    }

    /// Returns the name, on the command line, in hellos and in statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.words().name
    }

    /// Returns the counters that its ports report.
    #[must_use]
    pub fn counters(self) -> Vec<&'static Counter> {
        (self.row().counters)()
    }

    /// Returns how it appears in hellos.
    #[must_use]
    pub fn words(self) -> &'static FabricWords {
        &self.row().words
    }

    /// Returns whether a lease passes descriptors to the client, which must be on this host.
    #[must_use]
    pub fn is_local(self) -> bool {
        self.words().socket
    }

    /// Returns the fabrics whose leases pass descriptors.
    pub fn local() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|fabric| fabric.is_local())
    }

    /// Returns whether its device may be lost while a server runs, and come back.
    #[must_use]
    pub fn may_be_lost(self) -> bool {
        self.row().may_be_lost
    }

    /// Returns the bytes of memory that a domain of this room occupies.
    #[must_use]
    pub fn pd_bytes(self, room: &PdRoom) -> usize {
        (self.row().pd_bytes)(room)
    }

    /// Checks whether this host may have the fabric, without opening a device.
    ///
    /// # Errors
    /// What is missing. A device may still be unusable where nothing is.
    pub fn probe(self) -> io::Result<()> {
        (self.row().probe)()
    }

    /// Examines what it needs of this host: what works, and for each part that does not, why and what
    /// helps.
    #[must_use]
    pub fn doctor(self) -> Checks {
        (self.row().doctor)()
    }

    /// Opens a server's device.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(
        self,
        options: &ListenOptions,
        host: &ListenHost,
    ) -> Result<AnyDevice, ListenError> {
        (self.row().listen)(options, host)
    }

    /// Returns the error of a server whose device is open but cannot serve.
    #[must_use]
    pub fn refused(self, reason: String) -> ListenError {
        (self.row().refused)(reason)
    }

    /// Opens a client's device.
    ///
    /// # Errors
    /// [`ClientDeviceError`].
    pub fn dial(self, dial: &Dial<'_>) -> Result<AnyDevice, ClientDeviceError> {
        (self.row().dial)(dial)
    }

    /// Returns its name in sentences, such as "shared memory".
    #[must_use]
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// Returns the option with which `herdwick serve` does without it.
    #[must_use]
    pub fn off(self) -> &'static str {
        self.row().off
    }

    /// Returns why a server may not offer it: "it ..."
    #[must_use]
    pub fn why_not_offered(self) -> &'static str {
        self.row().why_not_offered
    }

    /// Returns whether its devices on this host are hardware, as far as the kernel reports.
    #[must_use]
    pub fn is_hardware(self) -> bool {
        (self.row().is_hardware)()
    }

    /// Lists a text of each fabric, such as its name.
    #[must_use]
    pub fn list(text: fn(Self) -> &'static str, separator: &str) -> String {
        Self::ALL.map(text).join(separator)
    }

    /// Returns the options with which `herdwick serve` offers the fabric on this host, or does not.
    #[must_use]
    pub fn serve_options(self, offered: bool) -> &'static [&'static str] {
        let [on, off] = self.row().serve_options;
        if offered { on } else { off }
    }

    /// Opens a device for one end, where both are in one process.
    ///
    /// # Errors
    /// The operating system's, or [`io::ErrorKind::Unsupported`].
    pub fn loopback(self, end: End) -> io::Result<AnyDevice> {
        (self.row().loopback)(end)
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ListenOptions {
    /// Returns whether `fabric` is to be offered.
    #[must_use]
    pub fn wanted(&self, fabric: Fabric) -> Wanted {
        (fabric.row().wanted)(self)
    }

    /// Returns the fabrics that are wanted in this way.
    pub fn all(&self, wanted: Wanted) -> impl Iterator<Item = Fabric> {
        let fabrics = Fabric::ALL.into_iter();
        fabrics.filter(move |fabric| self.wanted(*fabric) == wanted)
    }

    /// Returns the word of its own that the offer of `fabric` has.
    #[must_use]
    pub fn attribute(&self, fabric: Fabric) -> Option<(&'static str, &'static str)> {
        let row = fabric.row();
        // The row has the word; the options decide whether it is offered.
        row.words.attribute.filter(|_| (row.has_attribute)(self))
    }

    /// Has `fabric` not offered.
    pub fn remove(&mut self, fabric: Fabric) {
        (fabric.row().remove)(self);
    }
}

impl AnyDevice {
    /// Opens a device in the same process that is a client of this one, which serves.
    ///
    /// # Errors
    /// The operating system's.
    pub fn beside(&self) -> io::Result<Self> {
        (self.fabric().row().beside)(self)
    }

    /// Opens a device at the place of this one, whose ports are all closed: some devices open each port once.
    ///
    /// # Errors
    /// The operating system's.
    pub fn anew(&self) -> io::Result<Self> {
        (self.fabric().row().anew)(self)
    }

    /// Describes the device to the operator.
    #[must_use]
    pub fn describe(&self) -> Description {
        (self.fabric().row().describe)(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_fabrics_and_names_are_unique() {
        for (index, fabric) in Fabric::ALL.into_iter().enumerate() {
            assert_eq!(fabric.rank(), index);
            assert_eq!(fabric.row().fabric, fabric);
            assert_eq!(Fabric::named(fabric.name()), Some(fabric));
        }
        assert_eq!(Fabric::named("tcp"), None);
        // An offer has one word for the token of a lease socket: if another provider passes
        // descriptors, the hello needs a token for each (`docs/wire.md`).
        assert_eq!(Fabric::local().count(), 1);
    }
}
