#!/usr/bin/env bash
# YCSB's workloads A, B, C, D and F (E is scans) through spymemcached, against our server and memcached, one
# worker each. YCSB compares each value that it reads with what it stored. By hand: needs Maven, a JDK from 11
# on, and memcached. `bash tests/peers/ycsb.sh [RECORDS [OPERATIONS [THREADS]]]`
set -euo pipefail
. "$(dirname "$0")/server.sh"
records=${1:-100000} operations=${2:-300000} threads=${3:-8}
here=$PWD/tests/peers/ycsb
work=$PWD/${CARGO_TARGET_DIR:-target}/ycsb
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars"
javac -cp "$work/jars/*" -d "$work/classes" "$here/Memcached.java"
out=$(mktemp)

# The mix of each workload as in YCSB's own files.
share() { # READ UPDATE INSERT READ-MODIFY-WRITE DISTRIBUTION
    echo "-p readproportion=$1 -p updateproportion=$2 -p insertproportion=$3 -p scanproportion=0
        -p readmodifywriteproportion=$4 -p requestdistribution=$5"
}
declare -A mixes=(
    [a]=$(share 0.5 0.5 0 0 zipfian) [b]=$(share 0.95 0.05 0 0 zipfian) [c]=$(share 1 0 0 0 zipfian)
    [d]=$(share 0.95 0 0.05 0 latest) [f]=$(share 0.5 0 0 0.5 zipfian)
)

ycsb() { # PHASE OPTION...: runs it, and fails if an operation did
    # Unquoted: several words.
    java -cp "$work/classes:$work/jars/*" site.ycsb.Client "$1" -db Memcached -threads "$threads" \
        -p workload=site.ycsb.workloads.CoreWorkload -p memcached.hosts="127.0.0.1:$port" \
        -p recordcount="$records" -p operationcount="$operations" -p dataintegrity=true \
        -p writeallfields=true -p fieldlengthdistribution=constant ${*:2} >"$out" 2>/dev/null
    # [READ], Return=NOT_FOUND, 3
    if grep -E 'Return=' "$out" | grep -v 'Return=OK'; then
        echo "ycsb.sh: $1 failed" >&2
        exit 1
    fi
}
figure() { # LABEL: the last column of the first line that has it
    awk -F', ' -v label="$1" 'index($0, label) { print $3; exit }' "$out"
}
workloads() { # NAME
    ycsb -load
    printf '%-10s load %9.0f\n' "$1" "$(figure 'Throughput(ops/sec)')"
    for mix in a b c d f; do
        ycsb -t ${mixes[$mix]}
        printf '%-10s %-4s %9.0f ops/s, read: mean %5.0f us, p99 %5.0f us\n' "$1" $mix \
            "$(figure 'Throughput(ops/sec)')" "$(figure '[READ], AverageLatency')" \
            "$(figure '[READ], 99thPercentile')"
    done
}

start_server -t 1 -m 1024
workloads herdwick
stop_server
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
memcached -l 127.0.0.1 -p "$port" -U 0 -t 1 -m 1024 -u nobody &
peer=$!
trap 'kill "$peer"' EXIT
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
workloads "memcached $(memcached -V | cut -d' ' -f2)"
