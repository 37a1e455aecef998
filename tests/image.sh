#!/usr/bin/env bash
# Builds packaging/Dockerfile's image of a release binary by buildah, without a daemon or a registry,
# and runs what it runs: the server, as its user, and the health check. The Dockerfile's first stage, a
# compilation on an image from a registry, is replaced by what it ends with: packaging/rootfs.sh, on this
# host's Debian 12. Needs root: image.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:-target/release/herdwick}
# A network of its own, where the image's ports are free, and processes that end with this one.
if [ -z "${HERDWICK_IMAGE_INSIDE:-}" ]; then
    HERDWICK_IMAGE_INSIDE=1 exec unshare --net --pid --fork --kill-child --mount-proc bash "$0" "$binary"
fi
ip link set lo up

fail() {
    echo "image.sh: $*" >&2
    [ ! -s "$work/log" ] || cat "$work/log" >&2
    exit 1
}
work=$(mktemp -d)
clean() {
    buildah rm --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT
cat >"$work/storage.conf" <<CONF
[storage]
driver = "vfs"
graphroot = "$work/images"
runroot = "$work/run"
CONF
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot

packaging/rootfs.sh "$binary" "$work/rootfs"
mkdir "$work/build"
mv "$work/rootfs" "$work/build"
# Docker's format, since OCI's has no health check.
buildah build --quiet --format docker --pull-never --build-context build="$work/build" \
    -f packaging/Dockerfile -t herdwick . >/dev/null

# What docker would run, a word a line.
configured() { # FIELD
    buildah inspect --type image herdwick | python3 -c "
import json, sys
config = json.load(sys.stdin)['Docker']['config']
print(*(config['Healthcheck']['Test'][1:] if '$1' == 'check' else config['$1']), sep='\n')"
}
mapfile -t entry < <(configured Entrypoint)
mapfile -t check < <(configured check)
[ "${check[*]}" = "herdwick stats" ] || fail "the health check is '${check[*]}'"
container=$(buildah from --pull-never herdwick)
inside() {
    buildah run "$container" -- "$@"
}

! inside "${check[@]}" >"$work/stats" 2>&1 || fail "the health check passes without a server"
inside "${entry[@]}" -m 64 >"$work/ready" 2>"$work/log" &
server=$!
until grep -q ready "$work/ready"; do
    kill -0 "$server" 2>/dev/null || fail "the server does not start"
    sleep 0.1
done
cat "$work/ready"
inside "${check[@]}" >"$work/stats" || fail "the health check fails"
pid=$(awk '$2 == "pid" || $1 == "pid" { print $NF }' "$work/stats" | tr -d '\r')
[ "$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status")" = 11211 ] || fail "it does not run as its user"

# As clients do, from outside the image and inside.
"$binary" set inside 'the image'
[ "$("$binary" get inside)" = 'the image' ] || fail "get"
inside herdwick get -v inside >"$work/get" 2>&1
grep -q 'over shm' "$work/get" || fail "its own clients have no shared memory: $(cat "$work/get")"
python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:9150/metrics").read().decode())' \
    >"$work/metrics"
grep -q '^memcached_up 1' "$work/metrics" || fail "no metrics"

# Every library has those that it links: libibverbs too, and those that it loads.
root=$(buildah mount "$container")
loader=$(cd "$root" && echo lib*/ld-linux-*)
for file in usr/bin/herdwick $(cd "$root" && find usr/lib -name '*.so*'); do
    chroot "$root" "/$loader" --list "/$file" >"$work/list" 2>&1 || fail "$file: $(cat "$work/list")"
done
[ -e "$root/usr/lib/$(uname -m)-linux-gnu/libibverbs.so.1" ] || fail "no libibverbs"

kill "$pid"
wait "$server" || fail "ends with $?"
echo "the image: $(du -sh "$work/build/rootfs" | cut -f1), serves and is checked"
