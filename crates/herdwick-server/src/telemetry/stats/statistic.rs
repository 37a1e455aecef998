//! What a statistic is: its name in `stats`, its series in metrics, its meaning, and how its value
//! is read. The tables beside this file declare every statistic once; `stats`, the metrics page and
//! [`statistics`](super::statistics) are read from them.

use std::{
    borrow::Cow,
    fmt,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// How a statistic changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticKind {
    /// It only grows, until `stats reset`, which leaves some as they are (`docs/statistics.md`).
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// It counts by size, for quantiles.
    Histogram,
    /// It is not a number.
    Text,
}

/// The unit of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, or text.
    One,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Microseconds,
}

/// A family of series of the metrics page.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: StatisticKind,
    pub(crate) help: &'static str,
}

/// One series: its family, its labels and their values.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) family: &'static Family,
    pub(crate) labels: &'static [(&'static str, &'static str)],
}

/// Bytes of one slot of the store's index.
pub(super) const SLOT_BYTES: u64 = 8;
/// The value of memcached's machinery that does not exist here.
pub(super) const ZERO: u64 = 0;

/// One statistic of one table. `R` reads its value: from the snapshots of all workers, or from the
/// counters of one part of the server.
#[derive(Debug)]
pub(crate) struct Statistic<R> {
    pub(crate) name: &'static str,
    pub(crate) kind: StatisticKind,
    pub(crate) unit: Unit,
    /// What it means; empty for those of memcached's machinery that does not exist here.
    pub(crate) help: &'static str,
    /// `None`: it is not on the metrics page.
    pub(crate) series: Option<Series>,
    pub(crate) read: R,
}

/// The value of a statistic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Count(u64),
    /// Microseconds, shown as seconds in memcached's format `%ld.%06ld`.
    Micros(u64),
    Text(Cow<'static, str>),
    /// The statistic does not exist in this configuration.
    Absent,
}

impl Value {
    /// Returns the value as metrics have it; `None`: it is not a number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            // Metrics are floats: counts are exact up to 2^53.
            Self::Count(count) => Some(*count as f64),
            Self::Micros(micros) => Some(*micros as f64 / 1e6),
            Self::Text(_) | Self::Absent => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Micros(micros) => write!(f, "{}.{:06}", micros / 1_000_000, micros % 1_000_000),
            Self::Text(text) => text.fmt(f),
            Self::Absent => Ok(()),
        }
    }
}

/// Conversions from what rows read, as counts.
macro_rules! counts {
    ($($from:ty: $value:ident => $count:expr,)+) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                Self::Count($count)
            }
        })+
    };
}

counts! {
    u64: count => count,
    u32: count => count.into(),
    usize: count => count as u64,
    bool: is_so => is_so.into(),
    &u64: count => *count,
    &AtomicU64: count => count.load(Relaxed),
    &AtomicU32: count => count.load(Relaxed).into(),
    &AtomicUsize: count => count.load(Relaxed) as u64,
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}

/// Declares a table of [`Statistic`]s, in the order of `stats`. A row is
///
/// ```text
/// /// What it means: the help text of its family, if it has one of its own.
/// KIND(UNIT) NAME = SOURCE => "FAMILY" in FAMILY(LABEL = "VALUE", ...);
/// ```
///
/// `view` names what the rows read, and its type. SOURCE is `fields.FIELD`, a field of the struct that
/// [`counted`] declares; `store.FIELD`, a counter of the stores, which declare its kind and meaning (KIND is
/// `Stored`, and the row has no comment); or an expression in braces. `(UNIT)` is absent for counts. A series
/// is `=> "FAMILY"`, with a family of its own, or `in FAMILY(...)`, with one that several statistics share,
/// or absent.
macro_rules! table {
    (
        view $view:ident: $StatsView:ty;
        fields $fields:expr;
        $(#[$doc:meta])*
        static $TABLE:ident;
        $(
            $(#[doc = $help:literal])*
            $kind:ident $(($unit:ident))? $name:ident =
                $(fields . $field:ident $(if { $present:expr })?)? $(store . $stored:ident)?
                $({ $($read:tt)+ })?
                $(=> $own:literal $(slab $slab:literal)?)?
                $(in $family:ident ($($label:ident = $value:literal),+))?;
        )+
    ) => {
        $(#[$doc])*
        pub(crate) static $TABLE: &[$crate::telemetry::stats::Statistic<
            fn(&$StatsView) -> $crate::telemetry::stats::Value,
        >] = &[$($crate::telemetry::stats::Statistic {
            name: stringify!($name),
            kind: $crate::telemetry::stats::statistic::table!(@kind $kind $($stored)?),
            unit: $crate::telemetry::stats::statistic::table!(@unit $($unit)?),
            help: $crate::telemetry::stats::statistic::table!(@help ($($help)*) $($stored)?),
            series: $crate::telemetry::stats::statistic::table!(
                @series ($crate::telemetry::stats::statistic::table!(@kind $kind $($stored)?))
                ($crate::telemetry::stats::statistic::table!(@help ($($help)*) $($stored)?))
                $(($own $($slab)?))? $($family ($($label $value)+))?
            ),
            read: |$view| $crate::telemetry::stats::statistic::table!(
                @read $view $((&$fields.$field) $(if ($present))?)? $((&$view.sum.store.$stored))?
                $(({ $($read)+ }))?
            ),
        }),+];
    };
    (@read $view:ident ($value:expr)) => {{
        // Most rows of zeros read nothing.
        let _ = $view;
        ($value).into()
    }};
    (@read $view:ident ($value:expr) if ($present:expr)) => {
        ($present).then_some($value).into()
    };
    (@kind Stored $stored:ident) => {
        match herdwick_mica::Counters::DESCRIBED.$stored.is_gauge {
            true => $crate::telemetry::stats::StatisticKind::Gauge,
            false => $crate::telemetry::stats::StatisticKind::Counter,
        }
    };
    (@kind $kind:ident) => { $crate::telemetry::stats::StatisticKind::$kind };
    (@help () $stored:ident) => { herdwick_mica::Counters::DESCRIBED.$stored.help };
    (@help ($($help:literal)*)) => { concat!($($help),*).trim_ascii() };
    (@unit) => { $crate::telemetry::stats::Unit::One };
    (@unit $unit:ident) => { $crate::telemetry::stats::Unit::$unit };
    (@series ($kind:expr) ($help:expr)) => { None };
    (@series ($kind:expr) ($help:expr) ($own:literal $($slab:literal)?)) => {
        Some($crate::telemetry::stats::Series {
            family: &$crate::telemetry::stats::Family {
                name: $own,
                kind: $kind,
                help: $help,
            },
            labels: &[$(("slab", $slab))?],
        })
    };
    (@series ($kind:expr) ($help:expr) $family:ident ($($label:ident $value:literal)+)) => {
        Some($crate::telemetry::stats::Series {
            family: &$crate::telemetry::stats::families::$family,
            labels: &[$((stringify!($label), $value)),+],
        })
    };
}

/// Declares a [`table`] together with the struct of the fields that its rows count in, and the
/// struct of its names, by which programs ask for them. Fields of type `u64` have a sum, and a
/// reset that leaves the gauges; other fields are atomic. A row of `fields.FIELD if { CONDITION }`
/// is absent where the condition is false.
macro_rules! counted {
    (
        view $view:ident: $StatsView:ty;
        fields $fields:expr;
        $(#[$struct_doc:meta])*
        struct $Fields:ident of $type:ident;
        $(#[$names_doc:meta])*
        names $Names:ident;
        $(#[$doc:meta])*
        static $TABLE:ident;
        $(
            $(#[doc = $help:literal])*
            $kind:ident $(($unit:ident))? $name:ident =
                $(fields . $field:ident $(if { $present:expr })?)? $(store . $stored:ident)?
                $({ $($read:tt)+ })?
                $(=> $own:literal)?
                $(in $family:ident ($($label:ident = $value:literal),+))?;
        )+
    ) => {
        $(#[$struct_doc])*
        pub(crate) struct $Fields {
            $($(pub(crate) $field: $type,)?)+
        }

        $crate::telemetry::stats::statistic::counted!(
            @sum $type $Fields [$($($kind $field,)?)+]
        );

        $(#[$names_doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Names {
            $(#[doc = stringify!($name)] pub $name: &'static str,)+
        }

        impl $Names {
            /// The names.
            pub const NAMES: Self = Self { $($name: stringify!($name),)+ };
        }

        $crate::telemetry::stats::statistic::table! {
            view $view: $StatsView;
            fields $fields;
            $(#[$doc])*
            static $TABLE;
            $(
                $(#[doc = $help])*
                $kind $(($unit))? $name =
                    $(fields . $field $(if { $present })?)? $(store . $stored)? $({ $($read)+ })?
                    $(=> $own)?
                    $(in $family ($($label = $value),+))?;
            )+
        }
    };
    (@sum u64 $Fields:ident [$($kind:ident $field:ident,)+]) => {
        impl std::ops::AddAssign<&Self> for $Fields {
            fn add_assign(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl $Fields {
            /// Zeroes every counter, but not the gauges.
            pub(crate) fn reset(&mut self) {
                $($crate::telemetry::stats::statistic::counted!(@reset $kind self.$field);)+
            }
        }
    };
    (@sum $type:ident $Fields:ident [$($ignored:tt)*]) => {};
    (@reset Counter $counter:expr) => { $counter = 0 };
    (@reset Gauge $counter:expr) => {};
}

pub(crate) use {counted, table};
