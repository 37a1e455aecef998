#!/usr/bin/env bash
# Clients that take longer to install than CI waits, each through what an application does with it,
# against our server with one worker and with three: the crate `memcache` (cargo), spymemcached and
# xmemcached (Maven, a JDK from 11 on). `bash tests/peers/more.sh`
set -euo pipefail
. "$(dirname "$0")/server.sh"
here=$PWD/tests/peers
target=$PWD/${CARGO_TARGET_DIR:-target}

CARGO_TARGET_DIR=$target/rust_memcache \
    cargo build -q --manifest-path "$here/rust_memcache/Cargo.toml"
mvn -q -B -f "$here/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$target/jars"

for workers in 1 3; do
    start_server -t "$workers"
    "$target/rust_memcache/debug/peer-memcache" "127.0.0.1:$port"
    java -cp "$target/jars/*" "$here/java/Clients.java" "$port"
    stop_server
done
