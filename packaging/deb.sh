#!/usr/bin/env bash
# Builds the Debian package; needs cargo-deb (cargo install cargo-deb). Says where it is.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked -p herdwick-cli
rm -rf target/package-parts
target/release/herdwick man target/package-parts/man
mkdir -p target/package-parts/completions
for shell in bash zsh fish; do
    target/release/herdwick completions "$shell" >"target/package-parts/completions/$shell"
done
gzip -n9 target/package-parts/man/*.1
cargo deb -p herdwick-cli --no-build --strip
