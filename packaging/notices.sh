#!/usr/bin/env bash
# Prints the crates that the binary links, each with its license, and the texts of their licenses and
# notices, each text once. Reads Cargo.lock and the sources that cargo has downloaded: notices.sh
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob nocaseglob

target=$(rustc -vV | sed -n 's/^host: //p')
list=$(cargo tree --locked --package herdwick-cli --edges normal --target "$target" \
    --prefix none --format '{p}|{l}' | grep -v '(/' | sed 's/ (\*)$//' | sort -u)
[ -n "$list" ] || { echo "notices.sh: cargo tree lists no crates" >&2; exit 1; }
declare -A of=() file_of=()
while IFS='|' read -r crate license; do
    crate=${crate% (proc-macro)}
    name=${crate/ v/-}
    echo "$name: ${license:-see below}"
    sources=("${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"/)
    [ ${#sources[@]} -gt 0 ] || { echo "notices.sh: no sources of $name: cargo fetch" >&2; exit 1; }
    for file in "${sources[0]}"{license,licence,copying,copyright,notice,unlicense}*; do
        [ -f "$file" ] || continue
        sum=$(sha256sum "$file" | cut -d' ' -f1)
        of[$sum]="${of[$sum]:-} $name"
        file_of[$sum]=$file
    done
done <<<"$list"
for sum in $(printf '%s\n' "${!of[@]}" | sort); do
    printf '\n----\n%s (%s)\n\n' "$(basename "${file_of[$sum]}")" "${of[$sum]# }"
    cat "${file_of[$sum]}"
done
