set -eu
cd "$(dirname "$0")"
. ./lib.sh

resources >"$work/before"
serve -v
each_path
kill_client
kill -9 "$server"
wait "$server" 2>/dev/null || true
back_to "$work/before"
echo "a killed server left nothing"
