# What the guests' scripts share.
here=10.9.0.1:11311
work=$(mktemp -d)

resources() { rdma resource show; }

# Serves until it is killed; `resources` then are as before. Prints nothing of its own but errors.
serve() {
    "$HERDWICK" serve -l 10.9.0.1 -p 11311 -t 1 -m 128 --shm off --verbs rxe0 "$@" >"$work/ready" &
    server=$!
    until grep -q ready "$work/ready"; do kill -0 "$server"; done
    grep . "$work/ready"
}

# Until a statistic is as high as that.
await() {
    until [ "$(count "$1")" -ge "$2" ]; do :; done
}

# By text: a client of ours would take a lease to ask.
count() {
    exec 3<>"/dev/tcp/${here/:/\/}"
    printf 'stats\r\nquit\r\n' >&3
    tr -d '\r' <&3 | awk -v name="$1" '$2 == name { print $3 }'
    exec 3>&-
}

# Prints nothing but errors.
measure() {
    "$HERDWICK" bench --server "$here" --fabric verbs --window 16 --runs 1 --keys 500 "$@" \
        2>"$work/said" || {
        cat "$work/said"
        return 1
    }
}

# One path after the other: bench fails if a value is wrong, or a request refused.
each_path() {
    local path
    for path in uc-write rc-write ud-send; do
        echo "-- $path"
        measure --request-path "$path" --seconds 1
        await "leases_${path/-/_}" 1
    done
    # Each stored every key.
    await announcements 1000
    await datagrams 500
}

# Until the resources are those of the file.
back_to() {
    until resources | cmp -s - "$1"; do :; done
}

kill_client() {
    resources >"$work/without"
    "$HERDWICK" bench --server "$here" --fabric verbs --keys 500 --seconds 600 >/dev/null 2>&1 &
    local client=$!
    await leases 1
    kill -9 "$client"
    wait "$client" 2>/dev/null || true
    back_to "$work/without"
    until [ "$(count leases)" -eq 0 ]; do :; done
    echo "a killed client left nothing"
}
