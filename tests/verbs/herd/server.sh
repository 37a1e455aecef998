set -eu
cd "$(dirname "$0")"
. ./lib.sh

resources >"$work/before"
# Until the client reports that it has seen all.
serve -A
wait "$server"
back_to "$work/before"
serve
await leases 1
kill -9 "$server"
wait "$server" 2>/dev/null || true
back_to "$work/before"
echo "a killed server left nothing"
