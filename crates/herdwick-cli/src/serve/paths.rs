//! The files that flags name: one that the server writes is not given to another flag as well.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{absolute::absolute, args::ServeArgs, error::ServeError, extended, tls::TlsOption};

/// Checks that no file that the server creates or replaces is named by two flags.
pub(super) fn check(args: &ServeArgs, config: Option<&Path>) -> Result<(), ServeError> {
    let written = [
        ("-s", args.unix_socket.as_deref()),
        ("-e", args.memory_file.as_deref()),
        ("-P", args.pid_file.as_deref()),
        ("--roce-pcap", args.roce_pcap.as_deref()),
    ];
    let read = [
        ("-Y", args.auth.as_deref()),
        ("--offload-secret", args.offload_secret.as_deref()),
        ("--config", config),
    ];
    let of_tls = extended::tls(&args.extended).filter_map(TlsOption::path);
    let given = |(flag, path): (_, Option<&Path>)| Some((flag, resolved(path?)));
    let written: Vec<_> = written.into_iter().filter_map(given).collect();
    let read = read.into_iter().filter_map(given);
    let read = read.chain(of_tls.map(|path| ("-o ssl_*", resolved(path))));
    let others: Vec<_> = written.iter().cloned().chain(read).collect();
    for (index, (first, path)) in written.iter().enumerate() {
        // Only those behind it: the pairs before were compared.
        let same = others[index + 1..].iter().find(|(_, other)| other == path);
        if let Some((second, _)) = same {
            return Err(ServeError::SameFile {
                path: path.clone(),
                first,
                second,
            });
        }
    }
    Ok(())
}

/// Returns the path without symbolic links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path);
    if let Ok(found) = fs::canonicalize(&path) {
        return found;
    }
    let directory = path
        .parent()
        .and_then(|parent| fs::canonicalize(parent).ok());
    match (directory, path.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => path,
    }
}
