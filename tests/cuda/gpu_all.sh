#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# gpu_all.sh DIR [check|bench|all] - run the suites and the measurements on this host's GPU
#
# Wants the programs that "make gpu" has built, beside itself or in build/gpu, and nothing else.  TAP
# goes to DIR/gpu-*.tap, what was said to DIR/gpu.log, three runs of the measurements to
# DIR/gpu-1.json to gpu-3.json with tables beside them.  Takes at most nine minutes; exits with 0 when
# everything passed and every goal was met.
set -u

out=${1:?usage: gpu_all.sh DIR [check|bench|all]}
what=${2:-all}
bin=$(dirname "$0")
[ -x "$bin/feed" ] || bin=build/gpu
mkdir -p "$out"
log=$out/gpu.log
status=0
started=$(date +%s)
: >"$log"

say()
{
	echo "$*" | tee -a "$log"
}

# suite NAME SECONDS COMMAND...: one TAP file; a suite that is killed or cut short has failed.
suite()
{
	name=$1
	seconds=$2
	shift 2
	begun=$(date +%s)
	timeout -k 5 "$seconds" "$@" >"$out/gpu-$name.tap" 2>>"$log"
	ret=$?
	[ $ret -eq 0 ] || status=1
	say "$name: exit status $ret, $(grep -c '^ok' "$out/gpu-$name.tap") ok," \
		"$(grep -c '^not ok' "$out/gpu-$name.tap") not ok, $(($(date +%s) - begun)) s"
	grep '^not ok' "$out/gpu-$name.tap" | tee -a "$log"
}

if ! nvidia-smi -L >/dev/null 2>&1; then
	say "no GPU here: nvidia-smi finds none"
	exit 1
fi
nvidia-smi -L >>"$log" 2>&1
uname -a >>"$log"

if [ "$what" != bench ]; then
	suite feed 60 "$bin/feed"
	suite drain 70 "$bin/drain"
	"$bin/example_feed" >>"$log" 2>&1 || status=1
	memcheck=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
	if [ -x "$memcheck" ]; then
		# The suites start CUDA some forty times, which takes too long under the checker.
		timeout -k 5 60 "$memcheck" --error-exitcode 9 "$bin/roundtrip" \
			>"$out/gpu-memcheck.txt" 2>&1
		ret=$?
		[ $ret -eq 0 ] || status=1
		say "memcheck: exit status $ret, $(grep 'ERROR SUMMARY' "$out/gpu-memcheck.txt")"
	else
		say "memcheck: skipped, there is no compute-sanitizer here"
	fi
fi
if [ "$what" != check ]; then
	for run in 1 2 3; do
		left=$((started + 530 - $(date +%s)))
		[ $left -lt 180 ] || left=180
		if [ $left -le 0 ]; then
			say "bench $run: not run, the nine minutes are over"
			status=1
			continue
		fi
		begun=$(date +%s)
		timeout -k 5 $left "$bin/bench" "$out/gpu-$run.json" >"$out/gpu-$run.txt" 2>>"$log"
		ret=$?
		[ $ret -eq 0 ] || status=1
		say "bench $run: exit status $ret, $(($(date +%s) - begun)) s"
		cat "$out/gpu-$run.txt"
	done
fi
say "exit status $status"
exit $status
