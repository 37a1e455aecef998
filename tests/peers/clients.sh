#!/usr/bin/env bash
# Clients as they install by name, each through what an application does with it, against our
# server with one worker and with three. Needs python3 with python-binary-memcached, meta-memcache,
# pymemcache, pylibmc and aiomcache (pip), node with memjs and memcached (npm, in $NODE_PATH), php with
# memcached, nginx, nutcracker (twemproxy), and openssl for certificates. gomemcache runs where
# there is go. more.sh has those that take longer to install.
set -euo pipefail
. "$(dirname "$0")/server.sh"
here=$PWD/tests/peers

gomemcache=
if command -v go >/dev/null && (cd "$here/gomemcache" && go mod download); then
    gomemcache=$PWD/target/gomemcache
    (cd "$here/gomemcache" && go build -o "$gomemcache" .)
else
    echo "skipped: gomemcache, for want of go or its module proxy"
fi

for workers in 1 3; do
    start_server -t "$workers"
    python3 "$here/binary_client.py" "$port"
    python3 "$here/meta_client.py" "$port"
    node "$here/memjs_client.js" "$port"
    for client in pylibmc aiomcache nginx twemproxy; do
        python3 "$here/${client}_client.py" "$port"
    done
    node "$here/memcached_client.js" "$port"
    php "$here/memcached_client.php" "$port"
    [ -z "$gomemcache" ] || "$gomemcache" "127.0.0.1:$port"
    stop_server
done

# In TLS, with certificates of an authority of its own, the client's too.
certificates=$(mktemp -d)
cd "$certificates"
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=authority \
    -keyout ca.key -out ca.pem 2>/dev/null
for name in server client; do
    openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost \
        -keyout $name.key -out $name.csr 2>/dev/null
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 \
        -copy_extensions copy -out $name.crt 2>/dev/null
    cat $name.crt $name.key >$name.pem
done
cd - >/dev/null
start_server -Z -o "ssl_chain_cert=$certificates/server.pem,ssl_ca_cert=$certificates/ca.pem" \
    -o ssl_verify_mode=2
python3 "$here/tls_client.py" "$port" "$certificates/ca.pem" "$certificates/client.pem"
stop_server
rm -r "$certificates"
