#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# gpu_all.sh DIR [check|bench|all|try] - run the suites and the measurements on this host's GPU
#
# Wants the programs that "make gpu" has built, beside itself or in build/gpu, and nothing else.  TAP
# goes to DIR/gpu-*.tap, what was said to DIR/gpu.log, three runs of the measurements to
# DIR/gpu-1.json to gpu-3.json with tables beside them.  Takes at most nine minutes; exits with 0 when
# everything passed and every goal was met.  With "try" it runs the experiments of bench_try.c instead and
# the rows whose goals were missed, into DIR/gpu-try.json, within five minutes.
set -u

out=${1:?usage: gpu_all.sh DIR [check|bench|all|try]}
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

# memcheck NAME COMMAND...: what compute-sanitizer finds.
memcheck()
{
	name=$1
	shift
	timeout -k 5 60 "$memcheck" --error-exitcode 9 "$@" >"$out/gpu-memcheck-$name.txt" 2>&1
	ret=$?
	grep -q 'ERROR SUMMARY: 0 errors' "$out/gpu-memcheck-$name.txt" || status=1
	[ $ret -eq 0 ] || status=1
	say "memcheck of $name: exit status $ret," \
		"$(grep 'ERROR SUMMARY' "$out/gpu-memcheck-$name.txt")"
}

if ! nvidia-smi -L >/dev/null 2>&1; then
	say "no GPU here: nvidia-smi finds none"
	exit 1
fi
nvidia-smi -L >>"$log" 2>&1
uname -a >>"$log"

if [ "$what" = try ]; then
	timeout -k 5 290 "$bin/bench" "$out/gpu-try.json" try-wake copies doorbell try-register images \
		>"$out/gpu-try.txt" 2>>"$log"
	status=$?
	cat "$log" "$out/gpu-try.txt"
	exit $status
fi
if [ "$what" != bench ]; then
	suite feed 60 "$bin/feed"
	suite drain 70 "$bin/drain"
	"$bin/example_feed" >>"$log" 2>&1 || status=1
	if [ -x "$bin/sluice" ]; then
		# /usr/bin is on every host: files of all sizes, and a few hundred MB.
		timeout -k 5 60 "$bin/sluice" pump --gpu 0 --batch-bytes 4M --max-bytes 400M /usr/bin \
			/usr/lib >"$out/gpu-pump.txt" 2>>"$log"
		ret=$?
		grep -q '^verified [1-9].* 0 mismatches$' "$out/gpu-pump.txt" || status=1
		say "pump: exit status $ret (1: files that cannot be read)," \
			"$(tail -n 1 "$out/gpu-pump.txt")"
		"$bin/sluice" doctor >"$out/gpu-doctor.txt" 2>>"$log"
		grep "device 0 registers" "$out/gpu-doctor.txt" >>"$log" || status=1
		say "$(grep "device 0" "$out/gpu-doctor.txt")"
	else
		say "pump: skipped, the program was not built"
	fi
	# What "make gpu-sanitizer" has fetched, or that of the host.
	memcheck=$bin/sanitizer/compute-sanitizer
	[ -x "$memcheck" ] ||
		memcheck=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
	if [ -x "$memcheck" ]; then
		# The suites start CUDA some forty times, which takes too long under the checker.
		memcheck roundtrip "$bin/roundtrip"
		[ ! -x "$bin/sluice" ] || memcheck pump "$bin/sluice" pump --gpu 0 --producers 2 \
			--max-bytes 30M /usr/bin
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
