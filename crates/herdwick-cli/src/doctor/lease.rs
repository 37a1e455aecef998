//! Check of the directory of the lease socket, which clients on this host need.

use std::{io, path::Path};

use herdwick_providers::Check;
use herdwick_server::check_lease_directory;

pub(super) fn check(directory: &Path) -> Check {
    socket_dir(directory, check_lease_directory(directory))
}

fn socket_dir(directory: &Path, allowed: io::Result<()>) -> Check {
    let name = directory.display();
    match allowed {
        Ok(()) => Check::works(format!("leases can be had in {name}")),
        Err(error) => Check::would_work_if(
            format!("no lease socket can be made in {name}: {error}"),
            "herdwick serve --shm-dir /a/directory/of/yours",
        ),
    }
    .fact("path", name.to_string())
}

#[cfg(test)]
mod tests {
    use herdwick_providers::Status;

    use super::*;

    #[test]
    fn refusal_names_the_cause_and_another_directory() {
        let works = socket_dir(Path::new("/x"), Ok(()));
        assert_eq!((works.status, works.advice), (Status::Works, None));
        assert!(works.reason.contains("/x"));
        let refused = socket_dir(Path::new("/x"), Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.status, Status::WouldWorkIf);
        assert!(refused.reason.contains("permission denied"), "{refused:?}");
        assert!(refused.advice.is_some());
    }
}
