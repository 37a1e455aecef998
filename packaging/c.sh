#!/usr/bin/env bash
# Builds the client library for C and installs it: packaging/c.sh PREFIX. Below PREFIX it writes
# include/herdwick.h, lib/libherdwick.so.0 and its link, lib/libherdwick.a, lib/pkgconfig/herdwick.pc and
# share/man/man3/herdwick.3. With DESTDIR all of it goes below that folder, and PREFIX is where it will be.
set -euo pipefail
[ $# -eq 1 ] || {
    echo "usage: packaging/c.sh PREFIX" >&2
    exit 2
}
prefix=$(realpath -m -s "$1")
root=${DESTDIR:-}$prefix
cd "$(dirname "$0")/.."
cargo build -q --release --locked -p herdwick-c
built=${CARGO_TARGET_DIR:-target}/release
source=crates/herdwick-c
put() { # MODE FILE PATH
    install -D -m "$1" "$2" "$root/$3"
}
put 644 "$source/include/herdwick.h" include/herdwick.h
put 644 "$built/libherdwick_c.a" lib/libherdwick.a
put 755 "$built/libherdwick_c.so" lib/libherdwick.so.0
ln -sf libherdwick.so.0 "$root/lib/libherdwick.so"
put 644 "$source/herdwick.3" share/man/man3/herdwick.3
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
mkdir -p "$root/lib/pkgconfig"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" "$source/herdwick.pc.in" >"$root/lib/pkgconfig/herdwick.pc"
