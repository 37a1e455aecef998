#!/usr/bin/env bash
# The client for Python as it is installed: the wheel is built, installed into a bare environment, and tested
# there without pymemcache and with it; then pymemcache's own suite runs against it.
# tests/python/run.sh [HERDWICK]
set -euo pipefail
cd "$(dirname "$0")/../.."
herdwick=$(realpath "${1:-target/release/herdwick}")
tools=$PWD/target/tools/python
wheels=$PWD/target/wheels
environment=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$environment"
}
trap stop EXIT
python=${PYTHON:-python3}
export CARGO_TARGET_DIR=$PWD/target/python

cargo fmt --check --manifest-path bindings/python/Cargo.toml
cargo clippy -q --locked --manifest-path bindings/python/Cargo.toml -- -D warnings

[ -x "$tools/bin/maturin" ] || {
    "$python" -m venv "$tools"
    "$tools/bin/pip" install -q --disable-pip-version-check maturin==1.16.0 pymemcache==4.0.0 pytest==9.2.0
}
rm -rf "$wheels"
"$tools/bin/maturin" build -q --release --locked \
    -m bindings/python/Cargo.toml -o "$wheels"
wheel=$(ls "$wheels"/herdwick-*-cp39-abi3-*.whl)

# A bare environment: no compiler, no Rust and no other package is needed.
"$python" -m venv "$environment"
PATH=/usr/bin:/bin "$environment/bin/pip" install -q --disable-pip-version-check --no-index "$wheel"
"$environment/bin/python" - <<'BARE'
import herdwick, herdwick.asyncio, pathlib
assert herdwick.MemcacheServerError.__module__ == "herdwick.exceptions"
folder = pathlib.Path(herdwick.__file__).parent
assert (folder / "py.typed").exists() and (folder / "__init__.pyi").exists()
BARE

"$tools/bin/pip" install -q --disable-pip-version-check --no-index --force-reinstall "$wheel"
HERDWICK=$herdwick "$tools/bin/python" -m pytest -q -p no:cacheprovider bindings/python/tests

# pymemcache's own suite, with the classes of that name replaced.
coproc SERVER { exec "$herdwick" serve -l 127.0.0.1 -p 0 -u root -m 50 --shm-dir "$environment"; }
server=$SERVER_PID
read -r -t 30 ready <&"${SERVER[0]}"
port=$(sed -nE 's/.*127\.0\.0\.1:([0-9]+).*/\1/p' <<<"$ready")
suite=$("$tools/bin/python" -c 'import os, pymemcache; print(os.path.dirname(pymemcache.__file__))')/test
PYTHONPATH=tests/python "$tools/bin/python" -m pytest -q -p no:cacheprovider -p replaced -c /dev/null \
    --rootdir "$suite" "$suite/test_integration.py" -m integration -W ignore \
    --server 127.0.0.1 --port "$port"
