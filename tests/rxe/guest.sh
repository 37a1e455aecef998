#!/usr/bin/env bash
# Builds the guest in which Linux's own software RNIC, rdma_rxe, judges ours: Debian's stock kernel
# and an initramfs with Debian's verbs programs, in target/rxe. Installs by apt what it needs, and
# keeps what it downloaded. Prints the directory.
set -euo pipefail
cd "$(dirname "$0")/../.."
guest=$PWD/target/rxe
mkdir -p "$guest"

needs=(qemu-system-x86 busybox-static ibverbs-utils ibverbs-providers perftest iproute2 libibverbs-dev)
modules=(
    virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci
    failover net_failover virtio_net
    crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe
)
programs=(
    ip rdma ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_devinfo
    ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw
)

install_needs() {
    local missing=() need
    for need in "${needs[@]}"; do
        dpkg-query -W -f '${Status}' "$need" 2>/dev/null | grep -q 'ok installed' || missing+=("$need")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

fetch_kernel() {
    [ ! -e "$guest/kernel/complete" ] || return 0
    local work=$guest/kernel.new package
    rm -rf "$work" "$guest/kernel"
    mkdir -p "$work"
    # The newest may be younger than this machine's lists.
    apt-get update -qq
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
    (cd "$work" && apt-get download -qq "$package" 2>/dev/null)
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb |
        tar -C "$work" -x --wildcards --no-anchored --transform 's,.*/,,' \
            'vmlinuz-*' "${modules[@]/%/.ko}"
    mv "$work"/vmlinuz-* "$work/vmlinuz"
    rm "$work"/linux-image-*.deb
    touch "$work/complete"
    mv "$work" "$guest/kernel"
}

# Copies a program or a library to a folder, and what it is linked with to where that is here.
take() {
    local from
    install -D -t "$guest/root$2" "$1"
    for from in $(ldd "$1" | grep -o '/[^ ]*'); do
        install -D "$from" "$guest/root$from"
    done
}

pack() {
    local root=$guest/root program provider
    rm -rf "$root"
    mkdir -p "$root"/{proc,sys,dev,tmp,modules,etc/libibverbs.d}
    install -D "$(command -v busybox)" "$root/bin/busybox"
    for program in "${programs[@]}"; do
        take "$(command -v "$program")" /usr/bin
    done
    take "$guest/verbs" /usr/bin
    provider=$(echo /usr/lib/*/libibverbs/librxe-*.so)
    take "$provider" "${provider%/*}"
    echo 'driver rxe' >"$root/etc/libibverbs.d/rxe.driver"
    cp "$guest"/kernel/*.ko "$root/modules"
    install -m 755 tests/rxe/init "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$guest/initramfs.gz"
}

install_needs
fetch_kernel
gcc -O1 -Wall -Wextra -Werror -o "$guest/verbs" tests/rxe/verbs.c -libverbs
pack
echo "$guest"
