#!/usr/bin/env bash
# Builds the client library for C and installs it: packaging/c.sh PREFIX. Below PREFIX it writes
# include/herdwick.h, lib/libherdwick.so.0 and its link, lib/libherdwick.a, lib/pkgconfig/herdwick.pc and
# share/man/man3/herdwick.3. With DESTDIR all of it goes below that folder, and PREFIX is where it will be.
# LIBDIR is the folder of the libraries below PREFIX, if not lib.
set -euo pipefail
[ $# -eq 1 ] || {
    echo "usage: packaging/c.sh PREFIX" >&2
    exit 2
}
prefix=$(realpath -m -s "$1")
root=${DESTDIR:-}$prefix
libdir=${LIBDIR:-lib}
cd "$(dirname "$0")/.."
# Its profile, where panics unwind: one is a status to C.
cargo build -q --profile c --locked -p herdwick-c
built=${CARGO_TARGET_DIR:-target}/c
source=crates/herdwick-c
put() { # MODE FILE PATH
    install -D -m "$1" "$2" "$root/$3"
}
put 644 "$source/include/herdwick.h" include/herdwick.h
put 644 "$built/libherdwick_c.a" "$libdir/libherdwick.a"
put 755 "$built/libherdwick_c.so" "$libdir/libherdwick.so.0"
ln -sf libherdwick.so.0 "$root/$libdir/libherdwick.so"
put 644 "$source/herdwick.3" share/man/man3/herdwick.3
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
mkdir -p "$root/$libdir/pkgconfig"
sed "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@VERSION@|$version|" "$source/herdwick.pc.in" \
    >"$root/$libdir/pkgconfig/herdwick.pc"
