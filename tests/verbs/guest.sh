#!/usr/bin/env bash
# Runs a script inside a guest that has Linux's software RNIC, rdma_rxe: Debian's stock kernel under
# qemu, with this host's own file system, read-only, beneath a memory one. So whatever is built
# here runs there unchanged. Installs by apt what it needs; keeps the kernel in target/verbs.
#
#   tests/verbs/guest.sh SCRIPT    prints what the script prints, and ends as it ends
#
# The guest's interface leads nowhere. With GUEST=1 and GUEST=2, at the same time, there are two that
# share a wire: 10.9.0.1 and 10.9.0.2. HERDWICK, a program, is passed on. With GUEST_ROOT, a directory
# that holds another system, that one is beneath instead, and its own init is started, which has to run
# /run/script: a copy of SCRIPT.
#
# Prints the reason and exits with 77 where there can be no guest.
set -euo pipefail
script=$(realpath "$1")
cd "$(dirname "$0")/../.."
guest=$PWD/target/verbs
run=$guest/run${GUEST:-}
mkdir -p "$run"

skip() {
    echo "skipped: $1" >&2
    exit 77
}

install_needs() {
    local missing=() need
    for need in qemu-system-x86 busybox-static iproute2 libibverbs1 ibverbs-providers; do
        dpkg-query -W -f '${Status}' "$need" 2>/dev/null | grep -q 'ok installed' || missing+=("$need")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        skip "cannot install ${missing[*]}"
}

modules=(
    virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci
    failover net_failover virtio_net
    fscache netfs 9pnet 9pnet_virtio 9p overlay crc32_generic udp_tunnel ip6_udp_tunnel
    ib_core ib_uverbs rdma_rxe dummy
)

fetch_kernel() {
    [ ! -e "$guest/kernel/virtio_net.ko" ] || return 0
    local work=$guest/kernel.new package
    rm -rf "$work" "$guest/kernel"
    mkdir -p "$work"
    apt-get update -qq || skip "no package lists"
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
    (cd "$work" && apt-get download -qq "$package" 2>/dev/null) || skip "cannot download $package"
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb |
        tar -C "$work" -x --wildcards --no-anchored --transform 's,.*/,,' \
            'vmlinuz-*' "${modules[@]/%/.ko}" 2>/dev/null || true # Some are built in.
    [ -e "$work/rdma_rxe.ko" ] || skip "$package has no rdma_rxe"
    mv "$work"/vmlinuz-* "$work/vmlinuz"
    rm "$work"/linux-image-*.deb
    touch "$work/complete"
    mv "$work" "$guest/kernel"
}

pack() { # SCRIPT
    local root=$run/root
    rm -rf "$root"
    mkdir -p "$root"/{bin,proc,sys,dev,modules,host,over,new}
    cp "$(command -v busybox)" "$root/bin/busybox"
    cp "$guest"/kernel/*.ko "$root/modules"
    install -m 755 tests/verbs/init "$root/init"
    install -m 755 "$1" "$root/script"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$run/initramfs.gz"
}

boot() {
    local wire=()
    if [ -n "${GUEST:-}" ]; then
        local ends=("$guest/wire-$GUEST" "$guest/wire-$((3 - GUEST))")
        rm -f "${ends[0]}"
        wire=(-netdev "dgram,id=wire,local.type=unix,local.path=${ends[0]},remote.type=unix,remote.path=${ends[1]}"
            -device "virtio-net-pci,netdev=wire,mac=52:54:00:09:00:0$GUEST")
    fi
    # What the script prints comes by a port of its own; the console is for when it fails.
    # no_timer_check: on a busy host the kernel's check of the emulated timer fails, and it panics.
    timeout "${GUEST_SECONDS:-240}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2048 \
        -nodefaults -display none -no-reboot -serial "file:$run/console.log" \
        -device virtio-serial-pci -chardev "file,id=out,path=$run/output.log" -serial chardev:out \
        -kernel "$guest/kernel/vmlinuz" -initrd "$run/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check script=$script guest=${GUEST:-} herdwick=${HERDWICK:-}${GUEST_ROOT:+ systemd}" \
        "${wire[@]}" \
        -virtfs "local,path=${GUEST_ROOT:-/},mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"
}

command -v apt-get >/dev/null || skip "the guest's kernel comes by apt-get"
install_needs
fetch_kernel
pack "$script"
rm -f "$run/output.log" "$run/console.log"
boot || echo "the guest did not end by itself" >&2
tr -d '\r' <"$run/output.log" | grep -v '^guest ended ' || true
status=$(tr -d '\r' <"$run/output.log" | awk '/^guest ended / { print $3 }')
[ -n "$status" ] || tail -30 "$run/console.log" >&2
exit "${status:-1}"
