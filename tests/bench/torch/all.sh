#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# all.sh DIRECTORY - every workload, stock and sluice side by side; JSON and a log into DIRECTORY
#
# Each workload has a time limit of its own.  On a host with a GPU all of them end within nine
# minutes whatever one of them does; w5, calls and peers come last and may be cut off there, they
# need no GPU.  PYTHON chooses the interpreter, PEERS one that has the peers, PYTHONPATH says where the
# package is.
set -u
out=${1:?usage: all.sh DIRECTORY}
here=$(dirname "$0")
python=${PYTHON:-python3}
peers=${PEERS:-$python}
[ -x "$(command -v "$peers")" ] || peers=$python
mkdir -p "$out"
cpus=$(nproc)
if [ "$cpus" -ge 8 ]; then workers=8; else workers=$cpus; fi
status=0
with=$python

workload()
{
	limit=$1 name=$2
	shift 2
	timeout -k 5 "$limit" "$with" "$here/$name.py" --out "$out" "$@" >>"$out/log" 2>&1 ||
		{ echo "$name ended with $?" >>"$out/log"; status=1; }
}

: >"$out/log"
workload 40 w1 --rounds 2 --seconds 0.7
workload 30 w2 --rounds 3 --seconds 1 --workers "$workers"
workload 165 w3 --rounds 2 --seconds 2 --workers "$workers"
workload 55 w4 --rounds 2 --seconds 2 --workers "$workers"
workload 50 w6 --rounds 1 --seconds 4 --workers "$workers"
workload 90 w7 --rounds 1
workload 75 w8 --rounds 1 --workers "1,$workers"
workload 35 w9 --rounds 2 --seconds 0.7
workload 75 w5 --rounds 1 --seconds 0.7 --workers 2
workload 180 calls --rounds 1 --few 5 --many 20
with=$peers
workload 300 peers --rounds 2 --seconds 0.7
"$python" "$here/plot.py" "$out"/*.json >>"$out/log" 2>&1 || status=1
cat "$out/log"
exit $status
