#!/usr/bin/env bash
# docs/moving-from-memcached.md, step by step, on a fresh Debian 12 beside its memcached: the package is
# installed by apt-get, systemd really runs, in a guest (tests/verbs/guest.sh). Takes some
# minutes, the first time (debootstrap) ten more; needs root and a Debian mirror: tests/debian.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."
package=$(packaging/deb.sh "${1:-target/release/herdwick}" 2>/dev/null)
root=$PWD/target/debian/root
mkdir -p "$root"

# What a server's installation has, and a memcached that runs.
if [ ! -e "$root/complete" ]; then
    command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap
    rm -rf "$root"
    debootstrap --variant=minbase \
        --include=systemd-sysv,dbus,procps,iproute2,curl,ca-certificates,memcached \
        bookworm "$root" http://deb.debian.org/debian >"$root.log"
    ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
    touch "$root/complete"
fi
cp "$package" "$root/root/"
cat >"$root/etc/systemd/system/try.service" <<'UNIT'
[Unit]
After=network.target memcached.service
[Service]
Environment=HOME=/root LC_ALL=C
WorkingDirectory=/root
ExecStart=/bin/bash -c 'bash /run/script; echo "guest ended $?"; sync; systemctl poweroff -ff'
StandardOutput=file:/dev/ttyS1
StandardError=inherit
[Install]
WantedBy=multi-user.target
UNIT
ln -sf ../try.service "$root/etc/systemd/system/multi-user.target.wants/try.service"

cat >target/debian/steps.sh <<'STEPS'
set -uo pipefail
fail() {
    echo "failed: $*"
    systemctl status --no-pager herdwick
    journalctl --no-pager -u herdwick | tail -n 30
    exit 1
}
step() { echo "== $*"; }
# Sends lines to a port of this host; prints the first line of the answer.
ask() { # PORT LINES
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf '%b' "$2" >&3
    local line
    read -r -t 10 line <&3
    exec 3>&-
    tr -d '\r' <<<"$line"
}
# Waits until memcached answers: systemctl returns before it listens.
await_memcached() {
    local turn
    for turn in $(seq 100); do
        ask 11211 'version\r\n' 2>/dev/null | grep -q 'VERSION 1.6.18' && return
        ! systemctl is-failed -q memcached || break
        sleep 0.2
    done
    fail "memcached does not answer"
}
set_line() { # NAME VALUE
    sed -i "/^$1 = /d" /etc/herdwick.toml
    echo "$1 = $2" >>/etc/herdwick.toml
}

step "memcached has its port"
ip link set lo up
await_memcached

step "the package neither starts nor enables it"
apt-get install -y -qq ./herdwick_*.deb >/tmp/apt 2>&1 || { cat /tmp/apt; fail "apt-get"; }
cat /tmp/apt
! systemctl is-active -q herdwick || fail "it runs"
! systemctl is-enabled -q herdwick || fail "it is enabled"
man -w herdwick-serve >/dev/null 2>&1 || ls /usr/share/man/man1/herdwick-serve.1.gz >/dev/null || echo "no manual (minbase)"

step "memcached's flags are tried by hand"
herdwick serve -m 64 -c 1024 -p 0 -u herdwick -t 2 -o modern,slab_reassign >/tmp/ready 2>/tmp/said &
tried=$!
until grep -q ready /tmp/ready; do kill -0 $tried || { cat /tmp/said; fail "flags"; }; sleep 0.1; done
cat /tmp/said
kill $tried
wait $tried || fail "ends with $?"
herdwick doctor
[ $? -le 1 ] || fail "doctor"

step "memcached's port is taken: the start fails and says so"
systemctl start herdwick && fail "it starts on memcached's port"
journalctl --no-pager -u herdwick | grep -q '127.0.0.1:11211 is in use' || fail "it does not say so"
systemctl reset-failed herdwick; systemctl stop herdwick

step "it starts beside memcached, enabled, and answers when systemctl returns"
set_line port 11311
set_line memory-file '"/run/herdwick/items"'
systemctl enable --now herdwick || fail "does not start"
ask 11311 'version\r\n' | grep -q 'VERSION 1.6.45' || fail "does not answer"
systemctl is-enabled -q herdwick || fail "is not enabled"

step "metrics"
curl -fsS http://127.0.0.1:9150/metrics >/tmp/metrics || fail "no metrics"
grep -E '^memcached_(up|version|max_connections)' /tmp/metrics
grep -q '^memcached_up 1' /tmp/metrics || fail "memcached_up"

step "a warm restart keeps the items; kill -9 too"
ask 11311 'set kept 0 0 5\r\nhello\r\n' | grep -q STORED || fail "set"
systemctl restart herdwick || fail "restart"
ask 11311 'get kept\r\n' | grep -q 'VALUE kept 0 5' || fail "cold"
main() { systemctl show -p MainPID --value herdwick; }
old=$(main)
kill -9 "$old"
until [ "$(main)" != "$old" ] && systemctl is-active -q herdwick; do sleep 0.2; done
ask 11311 'get kept\r\n' | grep -q 'VALUE kept 0 5' || fail "cold after kill -9"
journalctl --no-pager -u herdwick | grep -i 'recovered\|warm\|items' | tail -n 2

step "a file on disk survives a stop"
set_line memory-file '"/var/lib/herdwick/items"'
systemctl restart herdwick
ask 11311 'set stopped 0 0 1\r\nx\r\n' >/dev/null
systemctl stop herdwick; systemctl start herdwick
ask 11311 'get stopped\r\n' | grep -q 'VALUE stopped' || fail "cold after a stop"

step "top, of memcached and of this"
for port in 11211 11311; do
    herdwick top --json --server 127.0.0.1:$port --interval 1 | head -c 300 || fail "top of $port"
    echo
done

step "shared memory for the group, TCP for others"
useradd -G herdwick member; useradd other
cat >/tmp/get.sh <<'GET'
herdwick get -v --server 127.0.0.1:11311 stopped 2>&1
GET
su -s /bin/sh member -c 'sh /tmp/get.sh' | tee /tmp/member
grep -q shm /tmp/member || fail "a member of the group gets no shared memory"
su -s /bin/sh other -c 'sh /tmp/get.sh' | tee /tmp/other
grep -q '^x' /tmp/other || fail "others cannot read"

step "a mistake in the file is named by its line; systemd does not try again"
cp /etc/herdwick.toml /tmp/good.toml
echo 'conn-limt = 10' >>/etc/herdwick.toml
systemctl restart herdwick && fail "starts"
journalctl --no-pager -u herdwick -n 20 | grep -F 'conn-limt: no such flag; is it conn-limit?' || fail "no line"
systemctl show -p NRestarts -p ExecMainStatus herdwick
[ "$(systemctl show -p ExecMainStatus --value herdwick)" = 2 ] || fail "code"
cp /tmp/good.toml /etc/herdwick.toml
systemctl start herdwick || fail "start"

step "SIGHUP"
set_line conn-limit 77
systemctl reload herdwick || fail "reload"
until ask 11311 'stats settings\r\n' >/dev/null; do :; done
for turn in $(seq 50); do
    herdwick stats --server 127.0.0.1:11311 settings | grep -Eq 'maxconns.+77' && break
    sleep 0.1
done
herdwick stats --server 127.0.0.1:11311 settings | grep -E 'maxconns.+77' || fail "not reloaded"

step "it takes memcached's port over"
systemctl disable -q --now memcached
set_line port 11211
systemctl restart herdwick || fail "start on 11211"
ask 11211 'get stopped\r\n' | grep -q 'VALUE stopped' || fail "cold on another port"

step "an upgrade restarts it"
old=$(main)
apt-get install -y -qq --reinstall ./herdwick_*.deb >/tmp/apt 2>&1 || { cat /tmp/apt; fail "upgrade"; }
[ "$(main)" != "$old" ] || fail "not restarted"
ask 11211 'get stopped\r\n' | grep -q 'VALUE stopped' || fail "cold after the upgrade"
grep -q '^port = 11211' /etc/herdwick.toml || fail "the flags were replaced"

step "roll back"
systemctl disable --now herdwick
systemctl enable -q --now memcached
await_memcached
apt-get remove -y -qq herdwick >/tmp/apt 2>&1 || { cat /tmp/apt; fail "remove"; }
[ -e /etc/herdwick.toml ] || fail "remove took the flags along"
apt-get purge -y -qq herdwick >/tmp/apt 2>&1 || { cat /tmp/apt; fail "purge"; }
[ ! -e /etc/herdwick.toml ] || fail "purge left the flags"
ls -d /var/lib/herdwick /run/herdwick /etc/systemd/system/*/herdwick* 2>&1
echo "all steps of the page"
STEPS
status=0
GUEST_ROOT=$root GUEST_SECONDS=${GUEST_SECONDS:-1800} bash tests/verbs/guest.sh target/debian/steps.sh || status=$?
[ "$status" -eq 77 ] && exit 0
exit "$status"
