#!/usr/bin/env bash
# Clients that authenticate by SASL, against our server with `-S`, with one worker and with three.
# Needs python3 with python-binary-memcached, node with memjs (npm, in $NODE_PATH), and libmemcached's
# tools with the modules of Cyrus SASL. pylibmc (pip, built from source: the wheel has no modules) and
# spymemcached (java and mvn) run where they are.
set -euo pipefail
. "$(dirname "$0")/server.sh"
here=$PWD/tests/peers

spymemcached=
if command -v java >/dev/null && command -v mvn >/dev/null &&
    mvn -q -f "$here/sasl_spymemcached/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$PWD/target/spymemcached" </dev/null; then
    spymemcached=$PWD/target/spymemcached
else
    echo "skipped: spymemcached, for want of java, mvn or its repository"
fi
pylibmc=
if python3 -c 'import pylibmc' 2>/dev/null; then
    pylibmc=$here/sasl_pylibmc.py
else
    echo "skipped: pylibmc, which is not installed"
fi

folder=$(mktemp -d)
printf 'someone:pass:word\n' >"$folder/users"
printf 'someone@%s:pass:word:realm\n' "$(cat /proc/sys/kernel/hostname)" >"$folder/pwdb"

# libmemcached's, which shows statistics only to who is authenticated.
memcstat() { # USER PASSWORD
    command memcstat --binary --username="$1" --password="$2" --servers="127.0.0.1:$port"
}

# Both kinds of files.
for workers in 1 3; do
    if [ "$workers" = 1 ]; then
        start_server -S -Y "$folder/users" -t "$workers"
        login=(someone pass:word)
    else
        export MEMCACHED_SASL_PWDB=$folder/pwdb
        start_server -S -t "$workers"
        login=(someone pass)
    fi
    python3 "$here/sasl_bmemcached.py" "$port" "${login[@]}"
    node "$here/sasl_memjs.js" "$port" "${login[@]}"
    # By SCRAM-SHA-256, the strongest that Cyrus' modules have too.
    memcstat "${login[@]}" | grep 'auth_cmds: [1-9]'
    if memcstat "${login[0]}" wrong | grep auth_cmds; then
        echo "a wrong password was not refused" >&2
        exit 1
    fi
    [ -z "$pylibmc" ] || python3 "$pylibmc" "$port" "${login[@]}"
    [ -z "$spymemcached" ] ||
        java -cp "$spymemcached/*" "$here/sasl_spymemcached/Sasl.java" "$port" "${login[@]}" 2>/dev/null
    stop_server
done
rm -r "$folder"
