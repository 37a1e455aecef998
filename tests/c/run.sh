#!/usr/bin/env bash
# The client library for C as it is installed: a program finds it by pkg-config, shared and static; valgrind
# and AddressSanitizer find nothing, over shared memory and over TCP; what the library exports is what the
# header declares; the header is C99 and C++; the manual page is well formed.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
servers=()
stop() {
    [ ${#servers[@]} -eq 0 ] || kill "${servers[@]}" 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

packaging/c.sh "$folder/prefix"
cargo build -q --release --locked --bin herdwick
herdwick=$PWD/${CARGO_TARGET_DIR:-target}/release/herdwick
export PKG_CONFIG_PATH=$folder/prefix/lib/pkgconfig LD_LIBRARY_PATH=$folder/prefix/lib
[ "$(pkg-config --modversion herdwick)" = "$("$herdwick" -V | cut -d' ' -f2)" ]

# start NAME: a server; its address is in $address.
start() {
    mkfifo "$folder/$1"
    "$herdwick" serve -l 127.0.0.1 -p 0 -u root -t 1 -m 64 --shm-dir "$folder" >"$folder/$1" \
        2>"$folder/$1.log" </dev/null &
    servers+=($!)
    read -r -t 30 ready <"$folder/$1"
    address=$(grep -o '127.0.0.1:[0-9]*' <<<"$ready")
}
addresses=()
for name in a b c; do
    start "$name"
    addresses+=("$address")
done

# build PROGRAM [FLAG..]
strict="-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -pedantic -g -O1 -pthread"
build() {
    cc $strict "${@:2}" -o "$folder/$1" crates/herdwick-c/tests/api.c \
        $(pkg-config --cflags --libs herdwick)
}
build shared
ldd "$folder/shared" | grep -q "libherdwick.so.0 => $folder/prefix/lib/libherdwick.so.0"
build asan -fsanitize=address,undefined
# The static library, without the other.
cc $strict -o "$folder/static" crates/herdwick-c/tests/api.c \
    $(pkg-config --cflags herdwick) $(pkg-config --variable=static herdwick)
if ldd "$folder/static" | grep -q libherdwick; then
    echo "the static program needs the shared library" >&2
    exit 1
fi

# run TRANSPORT COMMAND..
run() {
    local transport
    transport=$("${@:2}" "${addresses[0]}" "$1" "${addresses[1]}" "${addresses[2]}")
    [ "$transport" = "$1" ]
    echo "$1: ${*:2}" | sed "s|$folder/||g"
}
for transport in shm tcp; do
    run "$transport" "$folder/shared"
    run "$transport" "$folder/static"
    ASAN_OPTIONS=detect_leaks=1 run "$transport" "$folder/asan"
    run "$transport" valgrind -q --error-exitcode=1 --leak-check=full \
        --errors-for-leak-kinds=definite,indirect,possible "$folder/shared"
done

# Nothing else is exported, and nothing less.
nm -D --defined-only "$folder/prefix/lib/libherdwick.so" | awk '$2 == "T" {print $3}' | sort >"$folder/exported"
grep -oE 'herdwick_[a-z_]+\(' crates/herdwick-c/include/herdwick.h | tr -d '(' | sort -u >"$folder/declared"
diff "$folder/declared" "$folder/exported"

echo '#include <herdwick.h>' >"$folder/empty.c"
cc -std=c99 -Wall -Wextra -Werror -pedantic -fsyntax-only $(pkg-config --cflags herdwick) "$folder/empty.c"
c++ -x c++ -std=c++11 -Wall -Wextra -Werror -pedantic -fsyntax-only \
    $(pkg-config --cflags herdwick) "$folder/empty.c"
# The example of the manual page is a program that runs.
page=$folder/prefix/share/man/man3/herdwick.3
sed -n '/^\.EX/,/^\.EE/p' "$page" | sed '/^\./d; s/\\e/\\/g' |
    sed "s/127.0.0.1:11211/${addresses[0]}/" >"$folder/example.c"
cc -Wall -Werror -o "$folder/example" "$folder/example.c" $(pkg-config --cflags --libs herdwick)
[ "$("$folder/example")" = hello ]
warnings=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
[ -z "$warnings" ] || { echo "$warnings" >&2; exit 1; }
# The libraries may have another folder.
LIBDIR=lib64 packaging/c.sh "$folder/other"
PKG_CONFIG_PATH=$folder/other/lib64/pkgconfig
[ -f "$(pkg-config --variable=libdir herdwick)/libherdwick.so.0" ]
cc -o "$folder/example" "$folder/example.c" $(pkg-config --cflags --libs herdwick) \
    "-Wl,-rpath,$(pkg-config --variable=libdir herdwick)"
[ "$(env -u LD_LIBRARY_PATH "$folder/example")" = hello ]
echo "the library for C does as its header declares"
