# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Python package.  `make python` leaves an importable tree in build/python, linked with the
# archive that the rest of the build uses; `make wheel` builds what pip installs.

PYTHON ?= /usr/bin/python3
PY_INC := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)
PY_SRC := $(wildcard lib/python/src/*.c)
PY_OBJ := $(PY_SRC:lib/python/src/%.c=$(B)/python/obj/%.o)
PY_SO := $(B)/python/sluice/_sluice.abi3.so
PY_FILES := $(patsubst lib/python/%,%,$(wildcard lib/python/sluice/*.py lib/python/sluice/*.pyi \
	lib/python/sluice/py.typed lib/python/sluice/*/*.py lib/python/sluice/*/*.pyi))
PY_PKG := $(PY_FILES:%=$(B)/python/%)

.PHONY: python wheel
python: $(PY_SO) $(PY_PKG)

$(B)/python/obj/%.o: lib/python/src/%.c lib/python/build.mk
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) -Ilib -isystem $(PY_INC) $(ALL_CFLAGS) -fPIC -MMD -MP -c -o $@ $<

-include $(PY_OBJ:.o=.d)

# The archive's functions stay inside: another copy of the library may be in the same process.
$(PY_SO): $(PY_OBJ) $(B)/lib/libsluice.a
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared $(ALL_CFLAGS) $(LDFLAGS) -Wl,--exclude-libs,ALL -o $@ $^ $(LIB_LIBS) -ldl

$(B)/python/%: lib/python/%
	$(Q)mkdir -p $(@D)
	$(Q)cp $< $@

wheel:
	$(call say,WHEEL,$(B)/wheel)
	$(Q)mkdir -p $(B)/wheel
	$(Q)$(PYTHON) -m pip wheel -q --no-deps --no-build-isolation -w $(B)/wheel ./lib/python

# What Debian does not have and some tests want; without it they are skipped and say so.
$(B)/pypi/torchdata:
	$(call say,PIP,$@)
	$(Q)$(PYTHON) -m pip install -q --no-deps --disable-pip-version-check --target $(B)/pypi \
		torchdata==0.11.0 2>$(B)/pypi.log || \
		echo "  NOTE    no torchdata from PyPI: $$(tail -n 1 $(B)/pypi.log)"

.PHONY: check-python
check-python: python $(B)/pypi/torchdata
	$(Q)mkdir -p $(B)/check
	$(Q)PYTHONPATH=$(B)/python:$(B)/pypi PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -X faulthandler -m pytest \
		-q -p no:cacheprovider --tap $(B)/check/python.tap tests/python

# The same tests with current torch, on a host that has a GPU.
.PHONY: check-gpu check-python-gpu
check-python-gpu: python
	$(Q)$(if $(filter file,$(origin PYTHON)),,PYTHON=$(PYTHON)) tests/python/gpu.sh $(B)/gpu/results
check-gpu: check-python-gpu

# What bench-torch compares with, as far as it can be had: a row whose peer is missing says so.
$(B)/peers/bin/python:
	$(call say,PIP,$(B)/peers)
	$(Q)$(PYTHON) -m venv --system-site-packages $(B)/peers.new && \
	for p in spdl-core iceoryx2 ray; do \
		$(B)/peers.new/bin/pip install -q --disable-pip-version-check $$p 2>>$(B)/peers.log || \
		echo "  NOTE    no $$p from PyPI: $$(tail -n 1 $(B)/peers.log)"; \
	done
	$(Q)mv $(B)/peers.new $(B)/peers

# The same for the Python of another host, to be carried there; Ray is 200 MB and stays behind.
PEERS_FOR ?= 3.12
PEERS_SITE := $(B)/peers$(subst .,,$(PEERS_FOR))/site
.PHONY: bench-peers
bench-peers:
	$(call say,PIP,$(PEERS_SITE))
	$(Q)rm -rf $(PEERS_SITE)
	$(Q)$(PYTHON) -m pip install -q --disable-pip-version-check --no-compile --no-deps \
		--only-binary=:all: --python-version $(PEERS_FOR) --target $(PEERS_SITE) \
		spdl-core iceoryx2 flatbuffers

# Stock and sluice in one run; the rows that need a GPU say so where there is none.
.PHONY: bench-torch bench-torch-gpu
bench-torch: $(B)/peers/bin/python
bench-torch bench-torch-gpu: python
	$(Q)PYTHONPATH=$(abspath $(B)/python) PYTHON=$(PYTHON) PEERS=$(B)/peers/bin/python tests/bench/torch/all.sh $(B)/bench/torch

ifneq ($(wildcard $(PY_INC)/Python.h),)
ALL += python
CHECKS += check-python
else
NOTES += 'the Python package is left out: python3-dev is not installed.'
endif
