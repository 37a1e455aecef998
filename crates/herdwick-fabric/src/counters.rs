//! Counters as statistics show them: each is declared once, with its name and what it counts.

/// The name of a counter in statistics, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, unique within a provider: lower-case words and underscores.
    pub name: &'static str,
    /// What it counts, in one or more sentences.
    pub help: &'static str,
    /// Metrics show it among events: it counts nothing that was refused, dropped or lost, or that failed.
    pub is_event: bool,
}

/// Declares a struct of `u64` counters. Each field's documentation is also its text in
/// [`Counter::help`], and its name in statistics is the field's, unless another follows. `as event`
/// sets [`Counter::is_event`]:
///
/// ```
/// herdwick_fabric::counters! {
///     /// Counters of a link.
///     pub struct Link {
///         /// Frames received.
///         received as event,
///         /// Frames sent again.
///         repeated = "link_repeated" as event,
///         /// Frames with a wrong checksum.
///         damaged,
///     }
/// }
/// let link = Link { repeated: 2, ..Link::default() };
/// let counts: Vec<_> = link.iter().collect();
/// assert_eq!(counts, [("received", 0), ("link_repeated", 2), ("damaged", 0)]);
/// assert_eq!(Link::COUNTERS[1].help, "Frames sent again.");
/// assert!(Link::COUNTERS[1].is_event && !Link::COUNTERS[2].is_event);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$doc:meta])*
        $vis:vis struct $Counters:ident {
            // The documentation of a field is a literal here, so that it can be text at run time,
            // too.
            $($(#[doc = $help:literal])+ $field:ident $(= $name:literal)? $(as $event:ident)?,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $Counters {
            $($(#[doc = $help])+ pub $field: u64,)+
        }

        impl $Counters {
            /// The name and meaning of each counter, in the order of their declaration.
            pub const COUNTERS: &'static [$crate::Counter] = &[$($crate::Counter {
                name: $crate::counters!(@name $field $($name)?),
                // The text of a `///` line begins with a space.
                help: concat!($($help),+).trim_ascii(),
                is_event: $crate::counters!(@is_event $($event)?),
            }),+];

            /// Returns every counter with its name, in the order of their declaration.
            // Captures nothing of `self`: the caller may go on while it holds the counts.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$(($crate::counters!(@name $field $($name)?), self.$field)),+].into_iter()
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@is_event) => { false };
    (@is_event event) => { true };
}

/// Declares an enum of reasons why something is dropped or fails, and the struct of their counters. A reason's
/// documentation is also its text in [`Counter::help`]:
///
/// ```
/// herdwick_fabric::counted_reasons! {
///     /// Why a frame was dropped.
///     enum Drop counted by
///     /// Frames dropped, by reason.
///     Drops {
///         /// No buffer was free.
///         Full = "drop_full",
///         /// The checksum was wrong.
///         Checksum = "drop_checksum",
///     }
/// }
/// let mut drops = Drops::new();
/// drops.count(Drop::Checksum);
/// assert_eq!(drops.get(Drop::Checksum), 1);
/// assert_eq!(drops.iter().collect::<Vec<_>>(), [("drop_full", 0), ("drop_checksum", 1)]);
/// ```
#[macro_export]
macro_rules! counted_reasons {
    (
        $(#[$doc:meta])*
        $vis:vis enum $Reason:ident counted by
        $(#[$counts_doc:meta])*
        $Counts:ident {
            $($(#[doc = $help:literal])+ $Variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $Reason {
            $($(#[doc = $help])+ $Variant,)+
        }

        impl $Reason {
            /// The name and meaning of each reason's counter, in the order of the enum.
            $vis const COUNTERS: &'static [$crate::Counter] = &[$($crate::Counter {
                name: $name,
                // The text of a `///` line begins with a space.
                help: concat!($($help),+).trim_ascii(),
                is_event: false,
            }),+];
        }

        $(#[$counts_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $Counts([u64; $Reason::COUNTERS.len()]);

        #[allow(dead_code, reason = "not every provider calls all of them")]
        impl $Counts {
            /// Returns counters that are all 0.
            #[must_use]
            $vis const fn new() -> Self {
                Self([0; $Reason::COUNTERS.len()])
            }

            /// Counts one more, at a place that is seldom reached.
            #[cold]
            $vis fn count(&mut self, reason: $Reason) {
                self.add(reason, 1);
            }

            /// Counts `count` more.
            #[inline]
            $vis fn add(&mut self, reason: $Reason, count: u64) {
                self.0[reason as usize] += count;
            }

            /// Returns the counter of this reason.
            #[must_use]
            $vis fn get(&self, reason: $Reason) -> u64 {
                self.0[reason as usize]
            }

            /// Returns every counter with its name, zeros included.
            $vis fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let names = $Reason::COUNTERS.iter().map(|counter| counter.name);
                names.zip(self.0)
            }
        }
    };
}
