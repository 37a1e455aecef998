#!/usr/bin/env bash
# The Debian package of a release binary: what is in it, that it starts nothing by itself, and that what
# it holds fits together. Needs no root, and installs nothing: packages.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "packages.sh: $*" >&2
    exit 1
}

package=$(packaging/deb.sh "${1:-target/release/herdwick}" 2>/dev/null)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
dpkg-deb -R "$package" "$root"

# The binary, as it was stripped, and the pages and completions that it has written.
"$root/usr/bin/herdwick" -V | grep -q '^herdwick ' || fail "the binary does not run"
for file in usr/share/man/man1/herdwick-serve.1.gz usr/share/man/man1/herdwick-top.1.gz \
    usr/share/bash-completion/completions/herdwick usr/share/zsh/vendor-completions/_herdwick \
    usr/lib/systemd/system/herdwick.service usr/share/herdwick/alerts.yml; do
    [ -s "$root/$file" ] || fail "$file is missing"
done
grep -qx /etc/herdwick.toml "$root/DEBIAN/conffiles" || fail "flags are no conffile"
(cd "$root" && md5sum --quiet -c DEBIAN/md5sums) || fail "checksums differ"

# A new package neither enables nor starts the server: only an upgrade restarts one that runs.
if grep -rqE 'systemctl (enable|start|restart|--now)|deb-systemd-(helper|invoke)|invoke-rc.d' \
    <(grep -v echo "$root/DEBIAN/postinst"); then
    fail "postinst starts the server"
fi
zgrep -q '^rustls-[0-9.]*: ' "$root/usr/share/doc/herdwick/notices.gz" || fail "notices lack rustls"
for script in postinst prerm postrm; do
    sh -n "$root/DEBIAN/$script" || fail "$script"
done

if command -v promtool >/dev/null; then
    promtool test rules tests/alerts.yml >/dev/null || fail "promtool test rules tests/alerts.yml"
fi

# Links from one page to another, and to its sections.
cd "$root/usr/share/doc/herdwick"
grep -oH ']([a-z-]*\.md[^)]*)' ./*.md | tr -d '()]' | while IFS=: read -r page link; do
    [ -e "${link%%#*}" ] || fail "$page links to $link, which is not there"
done

# The unit, but for what is not installed here.
if command -v systemd-analyze >/dev/null; then
    complaints=$(systemd-analyze verify "$root/usr/lib/systemd/system/herdwick.service" 2>&1 |
        grep 'herdwick.service' | grep -v -e 'is not executable' -e "Command 'man " || true)
    [ -z "$complaints" ] || fail "$complaints"
fi

# The flags that it is started with are flags, and those that are offered as comments.
flags=$(mktemp -p "$root")
sed -e 's/^# \(memory-file = "\/var.*\)/\1/' -e "s#/var/lib/herdwick/items#$root/items#" \
    -e "s#/run/herdwick#$root#" -e 's/^port = .*/port = 0/' -e 's/:9150/:0/' \
    "$root/etc/herdwick.toml" >"$flags"
exec 3< <(exec "$root/usr/bin/herdwick" serve -u "$(id -un)" --config "$flags" 2>"$root/log")
server=$!
read -r ready <&3 || fail "does not start: $(cat "$root/log")"
[[ $ready == *ready* ]] || fail "$ready"
kill "$server"
wait "$server" || fail "ends with $?"
echo "$package: all there"
