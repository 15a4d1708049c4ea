# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Tests of the module, in kernels booted by tests/vm/run.

KMOD_SUITES := $(patsubst tests/kmod/test_%.c,$(B)/test/kmod/%,$(wildcard tests/kmod/test_*.c))
# Not the library's headers: the kernel's interface has a sluice.h too.
KMOD_CPPFLAGS := -D_GNU_SOURCE -Ikmod $(CPPFLAGS)
KMOD_PROGRAMS := $(KMOD_SUITES) $(B)/test/kmod/fuzz

$(B)/test/kmod/%: tests/kmod/test_%.c tests/kmod/common.h kmod/uapi/sluice.h | $(KSELFTEST)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(KMOD_CPPFLAGS) -isystem $(B)/include $(ALL_CFLAGS) -Wno-missing-prototypes \
		-o $@ $< -luring -lpthread

$(B)/test/kmod/fuzz: tests/kmod/fuzz.c tests/kmod/common.h kmod/uapi/sluice.h
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(KMOD_CPPFLAGS) $(ALL_CFLAGS) -o $@ $<

# The suites of the library, its crash points included, run once more on the module.
KMOD_LIB_SUITES := $(addprefix lib/,$(filter-out region,$(TEST_PLAIN))) $(addprefix crash/,$(TEST_CRASH))

# Emulation halves the speed of everything but patience.
export KMOD_SECONDS ?= 1800
export FUZZ_SECONDS ?= 60

.PHONY: check-kmod check-kernels check-kmod-debug
check-kmod check-kernels check-kmod-debug: export LIB_SUITES := $(KMOD_LIB_SUITES)
check-kmod check-kernels check-kmod-debug: $(addprefix $(B)/test/,$(KMOD_LIB_SUITES))
check-kmod check-kernels check-kmod-debug: $(B)/sluice $(B)/test/tools/holder
check-kmod: $(B)/kmod/6.1/sluice.ko $(B)/kmod/6.12/sluice.ko $(KMOD_PROGRAMS)
	$(Q)tests/kmod/check kmod 6.1 6.12

check-kernels: $(B)/kmod/newest/sluice.ko $(KMOD_PROGRAMS)
	$(Q)tests/kmod/check kernels newest

# What is not initialised shall not happen to be zero.
$(B)/kmod/debug/sluice.ko: KMOD_MAKE := KCFLAGS=-ftrivial-auto-var-init=pattern

$(B)/kmod/debug/mistakes/mistakes.ko: tests/kmod/mistakes/Kbuild tests/kmod/mistakes/mistakes.c
	$(call say,KMOD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)cp $^ $(@D)/
	$(Q)tests/vm/kmake debug $(@D) -s

check-kmod-debug: $(B)/kmod/debug/sluice.ko $(B)/kmod/debug/mistakes/mistakes.ko $(KMOD_PROGRAMS)
	$(Q)tests/kmod/check kmod-debug debug

CHECKS += check-kmod
GUEST_CHECKS += check-kmod

# make dkms-install and dkms-remove with dkms itself, and a guest that boots with what they leave.
.PHONY: check-dkms
check-dkms: $(B)/sluice
	$(Q)mkdir -p $(B)/check
	$(Q)tests/kmod/dkms 6.12 >$(B)/check/dkms.tap; status=$$?; cat $(B)/check/dkms.tap; exit $$status

CHECKS += check-dkms
GUEST_CHECKS += check-dkms
