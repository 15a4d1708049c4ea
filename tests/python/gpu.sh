#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# gpu.sh DIR - the Python tests with the torch of this host, which has to find a GPU
#
# Wants the package in build/python (make python); it is built for Python 3.9 and newer, so it may
# come from another host.  TAP goes to DIR/python-gpu.tap and DIR/python.tap.  PYTHON chooses the
# interpreter; without it the first of python3 and /usr/bin/python3 is taken whose torch finds a GPU.
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

# suite NAME SECONDS ARGUMENTS...: pytest in a process of its own, TAP to DIR/NAME.tap.
suite()
{
	name=$1
	seconds=$2
	shift 2
	timeout -k 5 "$seconds" env PYTHONPATH=build/python:build/pypi PYTHONDONTWRITEBYTECODE=1 \
		"$python" -X faulthandler -m pytest -q -p no:cacheprovider --durations=10 \
		--tap "$out/$name.tap" "$@" || status=1
}

# Apart: a process that has started CUDA should not fork for what the others test.
status=0
suite python-gpu 120 tests/python/test_gpu.py
suite python 400 --ignore tests/python/test_gpu.py tests/python
exit $status
