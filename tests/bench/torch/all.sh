#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# all.sh DIRECTORY - every workload, stock and sluice side by side; JSON and a log into DIRECTORY
#
# The most telling workloads come first, each with a time limit of its own, and each group of rows is
# in its JSON file as soon as it was measured.  With 8 CPUs and more all of it ends within BUDGET
# seconds (420 unless set): who comes last may be cut short or left out, and the log says so.
# PYTHON chooses the interpreter, PEERS one that has the peers, PYTHONPATH says where the package is;
# `make bench-peers` leaves peers for a host like an H200's in build/peersXY/site, which are found too.
# ONLY names the workloads to run.
set -u
out=${1:?usage: all.sh DIRECTORY}
here=$(dirname "$0")
python=${PYTHON:-python3}
peers=${PEERS:-$python}
[ -x "$(command -v "$peers")" ] || peers=$python
site=build/peers$("$peers" -c 'import sys; print("%d%d" % sys.version_info[:2])')/site
mkdir -p "$out"
cpus=$(nproc)
begun=$(date +%s)
if [ "$cpus" -ge 8 ]; then
	workers=8 end=$((begun + ${BUDGET:-420}))
else
	workers=$cpus end=$((begun + ${BUDGET:-3600}))
fi
status=0
with=$python

workload()
{
	limit=$1 name=$2
	shift 2
	case " ${ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
	now=$(date +%s)
	left=$((end - now))
	[ "$limit" -le "$left" ] || limit=$left
	rc="nothing: no time was left"
	if [ "$limit" -ge 5 ]; then
		timeout -k 5 "$limit" "$with" "$here/$name.py" --out "$out" "$@" >>"$out/log" 2>&1
		rc=$?
	fi
	echo "$name took $(($(date +%s) - now)) s and ended with $rc" >>"$out/log"
	[ "$rc" = 0 ] || status=1
}

: >"$out/log"
workload 35 w1 --rounds 2 --seconds 0.7
workload 165 w3 --rounds 2 --seconds 1 --custom-rounds 1 --workers "$workers"
workload 30 w2 --rounds 2 --seconds 1 --workers "$workers"
workload 50 w4 --rounds 2 --seconds 1 --workers "$workers"
workload 30 w9 --rounds 2 --seconds 0.7
workload 80 w7 --rounds 1
workload 90 w8 --workers "1,$workers" --stock-workers "$workers"
workload 45 w6 --rounds 1 --seconds 3 --workers "$workers"
workload 75 w5 --rounds 1 --seconds 0.4 --workers 2
with=$peers
[ ! -d "$site" ] || export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$site"
workload 300 peers --rounds 2 --seconds 0.7
with=$python
workload 180 calls --rounds 1 --few 5 --many 20
"$python" "$here/plot.py" "$out"/*.json >>"$out/log" 2>&1 || status=1
cat "$out/log"
exit $status
