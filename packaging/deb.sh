#!/usr/bin/env bash
# Builds the Debian package with dpkg-deb from a release binary, which it builds if there is none, and
# prints its path: packaging/deb.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in cargo dpkg-deb dpkg-shlibdeps strip gzip; do
    command -v "$tool" >/dev/null || {
        echo "deb.sh: $tool is missing: install cargo, dpkg-dev (with dpkg-shlibdeps), binutils and gzip" >&2
        exit 1
    }
done

binary=${1:-target/release/herdwick}
if [ $# -eq 0 ]; then
    cargo build --release --locked -p herdwick-cli --bin herdwick >&2
fi
version=$(sed -n '1s/^herdwick (\(.*\)) .*/\1/p' packaging/changelog)
upstream=$("$binary" -V | sed 's/^herdwick //')
if [ "${version%-*}" != "$upstream" ]; then
    echo "packaging/changelog is of $version, $binary of $upstream: add an entry" >&2
    exit 1
fi
arch=$(dpkg --print-architecture)
root=target/deb/herdwick_${version}_$arch
rm -rf "$root"
put() {
    install -D -m "$1" "$2" "$root/$3"
}

put 755 "$binary" usr/bin/herdwick
strip "$root/usr/bin/herdwick"
put 644 packaging/herdwick.service usr/lib/systemd/system/herdwick.service
put 644 packaging/herdwick.toml etc/herdwick.toml
put 644 packaging/grafana.json usr/share/herdwick/grafana.json
put 644 packaging/alerts.yml usr/share/herdwick/alerts.yml
for page in docs/*.md; do
    put 644 "$page" "usr/share/doc/herdwick/$(basename "$page")"
done
put 644 packaging/copyright usr/share/doc/herdwick/copyright
packaging/notices.sh >"$root/usr/share/doc/herdwick/notices"
gzip -n9 "$root/usr/share/doc/herdwick/notices"
put 644 packaging/changelog usr/share/doc/herdwick/changelog.Debian
gzip -n9 "$root/usr/share/doc/herdwick/changelog.Debian"

mkdir -p "$root/usr/share/man/man1"
"$binary" man "$root/usr/share/man/man1"
gzip -n9 "$root"/usr/share/man/man1/*.1
completions() {
    mkdir -p "$root/$(dirname "$2")"
    "$binary" completions "$1" >"$root/$2"
}
completions bash usr/share/bash-completion/completions/herdwick
completions zsh usr/share/zsh/vendor-completions/_herdwick
completions fish usr/share/fish/vendor_completions.d/herdwick.fish

# What the binary links, with the versions it needs of it; libibverbs is loaded if it is there.
libraries=$(cd target/deb && mkdir -p debian && touch debian/control &&
    dpkg-shlibdeps -O "../../$root/usr/bin/herdwick" 2>debian/log | sed -n 's/^shlibs:Depends=//p') || {
    cat target/deb/debian/log >&2
    echo "deb.sh: dpkg-shlibdeps failed" >&2
    exit 1
}
rm -rf target/deb/debian

mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: herdwick
Version: $version
Architecture: $arch
Maintainer: $(sed -n 's/^ -- \(.*>\)  .*/\1/p' packaging/changelog | head -n 1)
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: ${libraries:-libc6}, passwd
Suggests: libibverbs1, ibverbs-providers
Section: database
Priority: optional
Description: in-memory cache for memcached clients and RDMA clients
 Memcached's protocols over TCP, and RDMA verbs for its own clients: over
 shared memory on one host, without an RNIC. Takes memcached's command line.
END
echo /etc/herdwick.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    put 755 "packaging/debian/$script" "DEBIAN/$script"
done
(cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zxz --build "$root" "$root.deb" >&2
echo "$root.deb"
