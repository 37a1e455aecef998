# Sourced by the scripts beside it: starts a server of ours on a free port, stops it at exit.
# Sets $herdwick (the binary) and $port.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cargo build -q --release --bin herdwick
herdwick=$PWD/${CARGO_TARGET_DIR:-target}/release/herdwick

start_server() {
    coproc SERVER { exec "$herdwick" serve -p 0 "$@"; }
    trap stop_server EXIT
    local ready
    read -r -t 30 ready <&"${SERVER[0]}" || { echo "the server did not get ready" >&2; exit 1; }
    echo "$ready"
    port=$(sed -nE 's/.* on 127\.0\.0\.1:([0-9]+).*/\1/p' <<<"$ready")
    [ -n "$port" ] || { echo "no port in: $ready" >&2; exit 1; }
}

stop_server() {
    trap - EXIT
    local pid=${SERVER_PID:-}
    [ -n "$pid" ] || return 0
    kill -TERM "$pid"
    wait "$pid"
}

# What the server's threads are at, for one that does not answer.
show_server() {
    local task
    [ -n "${SERVER_PID:-}" ] || { echo "the server is gone"; return 0; }
    for task in /proc/"$SERVER_PID"/task/*; do
        echo "$(cat "$task/comm"): $(cut -d ' ' -f 3,14,15 "$task/stat") $(cat "$task/wchan")"
    done 2>/dev/null
}

# Whether the server answers soon.
answers() {
    local line
    exec 3<>/dev/tcp/127.0.0.1/"$port" || return 1
    printf 'version\r\n' >&3
    read -r -t 10 -u 3 line || return 1
    exec 3>&-
    echo "$line"
}

expect() { # WANTED COMMAND...: the command's output is WANTED
    local wanted=$1 got
    shift
    got=$("$@" | tr -d '\r')
    [ "$got" = "$wanted" ] || { printf 'from: %s\nwanted: %s\ngot:    %s\n' "$*" "$wanted" "$got" >&2; exit 1; }
}
