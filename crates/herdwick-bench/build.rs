//! Sets HERDWICK_COMMIT: the commit that the benchmark is built from, with `+changes` appended
//! where the work tree is edited.

use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_none_or(|files| files.is_empty()) {
        ""
    } else {
        "+changes"
    };
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=HERDWICK_COMMIT={commit}{mark}");
    // Every commit appends to this log; every edit of the measured code touches `crates/`.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=..");
}

/// Runs git and returns its trimmed output, or `None` outside a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
