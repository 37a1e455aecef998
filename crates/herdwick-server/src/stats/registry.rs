//! What a statistic is: its name in `stats`, its series in metrics, its meaning, and how its value
//! is read. The tables beside this file declare every statistic once; `stats`, the metrics page and
//! [`statistics`](super::statistics) are read from them.

use std::{
    borrow::Cow,
    cell::OnceCell,
    fmt,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use herdwick_mica::Clock;

use crate::{context::Context, counters::Snapshot, lease::LeaseCounters, tls::Certificates};

/// How a statistic changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until `stats reset`.
    Counter,
    /// It grows and shrinks.
    Gauge,
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
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

/// One series: its family, its labels and their values.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) family: &'static Family,
    pub(crate) labels: &'static [(&'static str, &'static str)],
}

/// One statistic of one table.
#[derive(Debug)]
pub(crate) struct Statistic {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    /// What it means; empty for those of memcached's machinery that does not exist here.
    pub(crate) help: &'static str,
    /// `None`: it is not on the metrics page.
    pub(crate) series: Option<Series>,
    pub(crate) read: fn(&View<'_>) -> Value,
}

/// Everything that statistics are read from, at one moment.
pub(crate) struct View<'a> {
    pub(crate) context: &'a Context,
    pub(crate) clock: Clock,
    /// The sum over all workers, or one worker's.
    pub(crate) sum: &'a Snapshot,
    cpu: OnceCell<(u64, u64)>,
}

impl<'a> View<'a> {
    pub(crate) fn new(context: &'a Context, clock: Clock, sum: &'a Snapshot) -> Self {
        Self {
            context,
            clock,
            sum,
            cpu: OnceCell::new(),
        }
    }

    /// Returns the same of one worker alone.
    pub(crate) fn of(&self, part: &'a Snapshot) -> Self {
        Self::new(self.context, self.clock, part)
    }

    /// Returns the user and the system CPU time of the process, in microseconds, read once.
    pub(super) fn cpu_micros(&self) -> (u64, u64) {
        *self.cpu.get_or_init(cpu_micros)
    }

    /// Returns what TLS is served with, if it is.
    pub(super) fn tls(&self) -> Option<&'a Certificates> {
        self.context.certificates.as_ref()
    }

    /// Returns the lease manager's counters, if there is one.
    pub(crate) fn leases(&self) -> Option<&'a LeaseCounters> {
        self.context.leases()
    }
}

/// Reads fields 14 and 15 of /proc/self/stat (proc(5)).
fn cpu_micros() -> (u64, u64) {
    // Without /proc it is 0, because readers expect a number.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_whitespace().skip(11);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let mut next = || {
        let ticks = fields.next().and_then(|ticks| ticks.parse().ok());
        let ticks: u64 = ticks.unwrap_or(0);
        ticks / per_second * 1_000_000 + ticks % per_second * 1_000_000 / per_second
    };
    (next(), next())
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
/// SOURCE is `fields.FIELD`, a field of the struct that [`counted`] declares, or an expression in
/// braces. `(UNIT)` is absent for counts. A series is `=> "FAMILY"`, with a family of its own, or
/// `in FAMILY(...)`, with one that several statistics share, or absent.
macro_rules! table {
    (
        view $view:ident;
        fields $fields:expr;
        $(#[$doc:meta])*
        static $TABLE:ident;
        $(
            $(#[doc = $help:literal])*
            $kind:ident $(($unit:ident))? $name:ident =
                $(fields . $field:ident $(if { $present:expr })?)? $({ $($read:tt)+ })?
                $(=> $own:literal $(slab $slab:literal)?)?
                $(in $family:ident ($($label:ident = $value:literal),+))?;
        )+
    ) => {
        $(#[$doc])*
        pub(crate) static $TABLE: &[$crate::stats::Statistic] = &[$($crate::stats::Statistic {
            name: stringify!($name),
            kind: $crate::stats::Kind::$kind,
            unit: $crate::stats::registry::table!(@unit $($unit)?),
            help: concat!($($help),*).trim_ascii(),
            series: $crate::stats::registry::table!(
                @series ($kind) (concat!($($help),*).trim_ascii())
                $(($own $($slab)?))? $($family ($($label $value)+))?
            ),
            read: |$view| $crate::stats::registry::table!(
                @read $view $((&$fields.$field) $(if ($present))?)? $(({ $($read)+ }))?
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
    (@unit) => { $crate::stats::Unit::One };
    (@unit $unit:ident) => { $crate::stats::Unit::$unit };
    (@series ($kind:ident) ($help:expr)) => { None };
    (@series ($kind:ident) ($help:expr) ($own:literal $($slab:literal)?)) => {
        Some($crate::stats::Series {
            family: &$crate::stats::Family {
                name: $own,
                kind: $crate::stats::Kind::$kind,
                help: $help,
            },
            labels: &[$(("slab", $slab))?],
        })
    };
    (@series ($kind:ident) ($help:expr) $family:ident ($($label:ident $value:literal)+)) => {
        Some($crate::stats::Series {
            family: &$crate::stats::families::$family,
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
        view $view:ident;
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
                $(fields . $field:ident $(if { $present:expr })?)? $({ $($read:tt)+ })?
                $(=> $own:literal)?
                $(in $family:ident ($($label:ident = $value:literal),+))?;
        )+
    ) => {
        $(#[$struct_doc])*
        pub(crate) struct $Fields {
            $($(pub(crate) $field: $type,)?)+
        }

        $crate::stats::registry::counted!(
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

        $crate::stats::registry::table! {
            view $view;
            fields $fields;
            $(#[$doc])*
            static $TABLE;
            $(
                $(#[doc = $help])*
                $kind $(($unit))? $name =
                    $(fields . $field $(if { $present })?)? $({ $($read)+ })?
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
                $($crate::stats::registry::counted!(@reset $kind self.$field);)+
            }
        }
    };
    (@sum $type:ident $Fields:ident [$($ignored:tt)*]) => {};
    (@reset Counter $counter:expr) => { $counter = 0 };
    (@reset Gauge $counter:expr) => {};
}

pub(crate) use {counted, table};
