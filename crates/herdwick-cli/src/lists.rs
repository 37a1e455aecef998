//! Options that take a list: those whose value's name ends with `,..`, as `N,..`.

use clap::Arg;

/// Lets commas separate the values of an option whose help shows that it takes a list.
pub(crate) fn separated(option: Arg) -> Arg {
    let names = option.get_value_names().unwrap_or_default();
    if names.iter().any(|name| name.ends_with(",..")) {
        option.value_delimiter(',')
    } else {
        option
    }
}
