#!/usr/bin/env bash
# Collects the image's whole file system: the binary, the libraries that it links or loads, their
# licences, the authorities for TLS, and a user. Needs Debian 12 with libibverbs1, ibverbs-providers and
# ca-certificates: rootfs.sh BINARY DIR, where DIR is not there yet.
set -euo pipefail
binary=$1
root=$2
mkdir "$root"
# As in Debian, so that a library is found under either name. lib64 has the loader.
for link in lib lib64; do
    [ ! -L "/$link" ] || ln -s "usr/$link" "$root/$link"
done
put() { # FILE: a copy of it, its directory's links resolved
    install -D -m "$(stat -L -c %a "$1")" "$1" "$root$(realpath "$(dirname "$1")")/$(basename "$1")"
}
linked() { # FILE...: the libraries that these link
    ldd "$@" | grep -o '/[^ ]*\.so[^ :]*' | sort -u
}

install -D -m 755 "$binary" "$root/usr/bin/herdwick"
strip "$root/usr/bin/herdwick"

# RNICs: libibverbs, which loads a library for each kind of device, by the files in /etc/libibverbs.d.
mapfile -t loaded < <(dpkg -L libibverbs1 ibverbs-providers |
    grep -E '/libibverbs\.so\.1$|-rdmav[0-9]+\.so$|\.driver$')
[ ${#loaded[@]} -gt 2 ] || { echo "rootfs.sh: libibverbs1 or ibverbs-providers is missing" >&2; exit 1; }
mapfile -t libraries < <(linked "$binary" $(printf '%s\n' "${loaded[@]}" | grep '\.so'))
for file in "${loaded[@]}" "${libraries[@]}" /etc/ssl/certs/ca-certificates.crt; do
    put "$file"
done
# A package names its file with the directory's link or without.
owners=$(printf '%s\n' "${libraries[@]}" | sed -E 's#.*(/[^/]+/[^/]+)$#*\1#' | xargs dpkg -S | cut -d: -f1)
for package in $(sort -u <<<"$owners") ibverbs-providers ca-certificates; do
    put "/usr/share/doc/$package/copyright"
done
install -D -m 644 packaging/copyright "$root/usr/share/doc/herdwick/copyright"
packaging/notices.sh >"$root/usr/share/doc/herdwick/notices"

printf '%s\n' root:x:0:0:::/none herdwick:x:11211:11211::/run/herdwick:/none >"$root/etc/passwd"
printf '%s\n' root:x:0: herdwick:x:11211: >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
mkdir -p "$root"/{dev,proc,run,sys}
# For whichever user the container has (`docker run --user`).
mkdir -m 1777 "$root"/{tmp,run/herdwick}
