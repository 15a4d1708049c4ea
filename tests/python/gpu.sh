#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# gpu.sh DIR - the Python tests with the torch of this host, which has to find a GPU
#
# Wants the package in build/python (make python); it is built for Python 3.9 and newer, so it may
# come from another host.  TAP goes to DIR/python-gpu.tap and DIR/python.tap, a line as each test
# ends.  PYTHON chooses the interpreter; without it the first of python3 and /usr/bin/python3 is
# taken whose torch finds a GPU.  All of it ends within LIMIT seconds: by default 150 where pytest-xdist
# runs them side by side, else 520.  What a suite leaves running is killed with it.
set -u

out=${1:?usage: gpu.sh DIR}
mkdir -p "$out"
finds_gpu="import sys, pytest, torch; torch.cuda.is_available() or sys.exit('torch finds no GPU')"
for python in ${PYTHON:-python3 /usr/bin/python3}; do
	why=$("$python" -c "$finds_gpu" 2>&1) && break
	python=
done
if [ -z "$python" ]; then
	echo "no Python here can run the tests on a GPU: $(echo "$why" | tail -n 1)" >&2
	exit 1
fi
# Some tests measure, so half of the processors stay free.
spread=
if "$python" -c 'import xdist' 2>/dev/null; then
	spread="-n $(($(nproc) / 2 + 1)) --dist load"
	seconds=${LIMIT:-150}
	export SLUICE_KILLS="${SLUICE_KILLS:-40}" SLUICE_EPOCHS="${SLUICE_EPOCHS:-40}" # of 100
else
	seconds=${LIMIT:-520}
fi
begun=$(date +%s)
group=
trap '[ -z "$group" ] || kill -s KILL -- "-$group" 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM

# suite NAME SECONDS ARGUMENTS...: pytest in a process group of its own, TAP to DIR/NAME.tap.
suite()
{
	name=$1
	limit=$2
	shift 2
	timeout -k 5 "$limit" env PYTHONPATH=build/python:build/pypi PYTHONDONTWRITEBYTECODE=1 \
		PYTHONUNBUFFERED=1 "$python" -X faulthandler -m pytest -q -p no:cacheprovider \
		--durations=10 --limit=60 --tap="$out/$name.tap" "$@" </dev/null &
	group=$!
	wait "$group"
	rc=$?
	# timeout has put itself and all that comes of it into a group.
	kill -s KILL -- "-$group" 2>/dev/null
	group=
	[ $rc -ne 124 ] && [ $rc -ne 137 ] ||
		echo "# $name did not end within $limit s" | tee -a "$out/$name.tap"
	[ $rc -eq 0 ] || status=1
}

# Apart: a process that has started CUDA should not fork for what the others test.
status=0
suite python-gpu $((seconds * 2 / 5)) tests/python/test_gpu.py
# shellcheck disable=SC2086 # no word, or four
suite python $((begun + seconds - $(date +%s) - 5)) $spread --ignore tests/python/test_gpu.py \
	tests/python
exit $status
