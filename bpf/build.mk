# SPDX-License-Identifier: GPL-2.0-only
#
# The eBPF counters, and the verbs of the program that load and read them.

BPF_MISSING := $(strip $(foreach t,$(CLANG) bpftool,$(if $(shell command -v $(t)),,$(t))) \
	$(if $(wildcard /usr/include/bpf/libbpf.h),,libbpf-dev))
BPF_ARCH := $(patsubst aarch64,arm64,$(patsubst x86_64,x86,$(shell uname -m)))
BPF_CFLAGS := -target bpf -mcpu=v3 -O2 -g -Wall -Werror -D__TARGET_ARCH_$(BPF_ARCH) \
	-idirafter /usr/include/$(shell $(CC) -print-multiarch)
BPF_SRCS := $(wildcard tools/stat*.c tools/trace*.c)

ifneq ($(BPF_MISSING),)
NOTES += "sluice trace and sluice stat need $(BPF_MISSING) (Debian: apt-get install clang bpftool libbpf-dev libelf-dev) and are left out"
else
# Raw BTF or an image with BTF in it; the host's by default.
VMLINUX_BTF ?= /sys/kernel/btf/vmlinux
ifneq ($(wildcard $(VMLINUX_BTF)),)
BPF_CFLAGS += -DSLUICE_VMLINUX -I$(B)/bpf
BPF_VMLINUX := $(B)/bpf/vmlinux.h
else
NOTES += "no $(VMLINUX_BTF): the eBPF programs are built with the types that bpf/kernel.h describes by hand"
endif

BPF_OBJS := $(BPF_SRCS:%.c=$(B)/%.o)
BPF_LIBS := -l:libbpf.a -lelf -lz -lm
TOOLS_EXTRA_OBJ += $(BPF_OBJS)
TOOLS_LIBS += $(BPF_LIBS)

$(B)/bpf/vmlinux.h:
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)bpftool btf dump file $(VMLINUX_BTF) format c >$@

# bpftool leaves out what only a debugger would want.
$(B)/bpf/counters.bpf.o: $(wildcard bpf/*.bpf.c bpf/*.h) $(BPF_VMLINUX)
	$(call say,BPF,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) $(BPF_CFLAGS) -c -o $@.tmp bpf/counters.bpf.c
	$(Q)bpftool gen object $@ $@.tmp
	$(Q)rm $@.tmp

$(B)/bpf/counters.skel.h: $(B)/bpf/counters.bpf.o
	$(call say,SKEL,$@)
	$(Q)bpftool gen skeleton $< name counters_bpf >$@

$(BPF_OBJS): $(B)/tools/%.o: tools/%.c $(B)/bpf/counters.skel.h $(wildcard tools/*.h) bpf/counters.h
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) -Ibpf -I$(B)/bpf $(ALL_CFLAGS) -c -o $@ $<

# Counts nothing before `systemctl enable --now sluice-counters`.
BPF_UNIT = $(DESTDIR)$(PREFIX)/lib/systemd/system/sluice-counters.service

.PHONY: install-bpf
install-bpf:
	$(call say,INSTALL,$(BPF_UNIT))
	$(Q)install -d $(dir $(BPF_UNIT))
	$(Q)install -m 644 bpf/sluice-counters.service $(BPF_UNIT)
	$(Q)sed -i 's|/usr/local/bin|$(PREFIX)/bin|g; s|/usr/local/lib|$(LIBDIR)|g' $(BPF_UNIT)
INSTALLS += install-bpf
endif
