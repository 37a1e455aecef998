#!/usr/bin/env bash
# What `serve --roce-pcap` writes, by every request path, judged by Wireshark's dissector. In a
# network namespace, where RoCEv2's own port is free; needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v ip >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null
}
cargo build -q -p herdwick-cli
herdwick=$PWD/target/debug/herdwick space=herdwick-p-$$ folder=$(mktemp -d)
server=
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns del "$space" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
ip netns add "$space"
ip -n "$space" link set lo up

for path in uc-write rc-write ud-send; do
    echo "-- $path"
    capture=$folder/$path.pcap ready=$folder/$path.ready
    ip netns exec "$space" "$herdwick" serve -t 1 -m 64 -l 127.0.0.1 -p 0 --shm off \
        --roce 127.0.0.1 --roce-pcap "$capture" --request-path "$path" >"$ready" &
    server=$!
    until grep -qs ready "$ready"; do read -rt 0.1 <> <(:) || true; done
    address=$(sed -E 's/.*ready on ([^ ]+) .*/\1/' "$ready")
    for bytes in 1 20 100 900; do
        value=$(head -c "$bytes" /dev/zero | tr '\0' v)
        for command in "set key$bytes $value" "get key$bytes"; do
            # On a busy host the server may miss the moment that a hello waits for its answer.
            for _ in 1 2 3 4 5; do
                if ip netns exec "$space" "$herdwick" $command --server "$address" -v \
                    >"$folder/said" 2>&1 && grep -q roce "$folder/said"; then
                    continue 2
                fi
            done
            cat "$folder/said"
            exit 1
        done
    done
    kill "$server"
    wait "$server" || true
    server=
    bash tests/rxe/dissect.sh "$capture"
done
