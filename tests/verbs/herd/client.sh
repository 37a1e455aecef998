set -eu
cd "$(dirname "$0")"
. ./lib.sh

reachable() { (: <>/dev/tcp/10.9.0.1/11311) 2>/dev/null; }

resources >"$work/before"
until reachable; do :; done
each_path
kill_client
exec 3<>/dev/tcp/10.9.0.1/11311
printf 'shutdown\r\n' >&3
while reachable; do :; done
until reachable; do :; done
# Until the server is killed under it.
measure --seconds 600 >/dev/null && exit 1
back_to "$work/before"
echo "a client of a killed server left nothing"
