//! The fabrics: one for each provider, the best first.

use crate::providers;

/// Makes [`Fabric`] from the list of providers.
macro_rules! fabrics {
    ($($(#[$doc:meta])* $name:ident: $module:ident, $device:ty, $port:ty;)*) => {
        /// A fabric, by its provider; the least is the best.
        // The order of the list is the preference.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Fabric {
            $($(#[$doc])* $name,)*
        }

        impl Fabric {
            /// Every fabric, the best first.
            // The length of the names' array is the number of the variants.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];
        }
    };
}

providers!(fabrics);

impl Fabric {
    /// The best fabric, which is used unless another is configured.
    pub const BEST: Self = Self::ALL[0];

    /// Returns its rank, 0 for the best: its place in [`Fabric::ALL`].
    #[must_use]
    pub const fn rank(self) -> usize {
        // The variants are in the order of the list, and so are the rows.
        self as usize
    }
}
