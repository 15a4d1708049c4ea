# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Tests of the counters. What counts runs in guests (tests/vm), since loading needs a kernel that
# lets it, and three kernels at that.

ifeq ($(BPF_MISSING),)
BPF_TESTS := $(addprefix $(B)/test/bpf/,matrix overhead press storm)
BPF_KERNELS := newest 6.12 6.1
BPF_LOADER := $(addprefix $(B)/tools/stat_,load.o pin.o usdt.o)

$(B)/test/bpf/matrix: tests/bpf/matrix.c $(BPF_LOADER) $(B)/tools/stat_read.o $(B)/lib/libsluice.a
$(B)/test/bpf/overhead: tests/bpf/overhead.c $(BPF_LOADER)
$(B)/test/bpf/press: tests/bpf/press.c
$(B)/test/bpf/storm: tests/bpf/storm.c

$(BPF_TESTS):
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) -Ilib -Itools -Ibpf $(ALL_CFLAGS) -o $@ $(filter %.c %.o %.a,$^) \
		$(BPF_LIBS) $(LIB_LIBS)

.PHONY: check-bpf
check-bpf: tools $(BPF_TESTS) $(BPF_KERNELS:%=$(B)/kmod/%/sluice.ko)
	$(Q)tests/bpf/run $(BPF_KERNELS)

CHECKS += check-bpf
GUEST_CHECKS += check-bpf
endif
