#!/usr/bin/env bash
# packaging/kubernetes without a cluster: renders the base and each component with kustomize, checks the
# result against Kubernetes' schemas, and runs what the pods would run. Needs root, Go, python3 with
# kubernetes-validate, and a release binary: kubernetes.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/herdwick}")
tools=$PWD/target/tools/bin
[ -x "$tools/kustomize" ] || GOBIN=$tools go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
# A network of its own, where the pod's ports are free, mounts of its own, and processes that end with it.
exec unshare --net --mount --pid --fork --kill-child --mount-proc \
    python3 tests/kubernetes.py "$tools/kustomize" "$binary"
