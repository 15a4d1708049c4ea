# SPDX-License-Identifier: GPL-2.0-only
#
# The module is built in a copy below build/, one for each kernel, so that the tree stays clean.

KMOD_SRC := Kbuild $(wildcard kmod/*.c kmod/*.h kmod/uapi/*.h kmod/probe/*.c)
KDIR ?= /lib/modules/$(shell uname -r)/build

$(B)/kmod/%/.copied: $(KMOD_SRC)
	$(Q)mkdir -p $(@D)/kmod/uapi $(@D)/kmod/probe
	$(Q)cp -p Kbuild $(@D)/
	$(Q)cp -p kmod/*.c kmod/*.h $(@D)/kmod/
	$(Q)cp -p kmod/probe/*.c $(@D)/kmod/probe/
	$(Q)cp -p kmod/uapi/*.h $(@D)/kmod/uapi/
	$(Q)touch $@

NO_HEADERS := no headers of the running kernel ($(KDIR)): sluice.ko is not built
NO_HEADERS += (Debian: apt-get install linux-headers-$(shell uname -r))

$(B)/sluice.ko: $(B)/kmod/running/.copied
	$(Q)[ -e '$(KDIR)/Makefile' ] || { echo '$(NO_HEADERS)' >&2; exit 1; }
	$(call say,KMOD,$@)
	$(Q)$(MAKE) -s -C $(KDIR) M=$(CURDIR)/$(<D) modules
	$(Q)cp $(<D)/sluice.ko $@

# $(B)/kmod/KERNEL/sluice.ko, for a kernel of tests/vm
$(B)/kmod/%/sluice.ko: $(B)/kmod/%/.copied
	$(call say,KMOD,$@)
	$(Q)tests/vm/kmake $* $(@D) -s $(KMOD_MAKE)

.PRECIOUS: $(B)/kmod/%/.copied $(B)/kmod/%/sluice.ko

-include kmod/dist.mk

ifneq ($(wildcard $(KDIR)/Makefile),)
ALL += $(B)/sluice.ko
INSTALLS += install-kmod
else
NOTES += "$(NO_HEADERS)"
endif

# ------------------------------------------------------------------ checks without a kernel

KMOD_KERNELS := 6.1 6.12 newest
CHECKPATCH = $(shell tests/vm/debug-kernel source)/scripts/checkpatch.pl

# Trace headers are laid out as the kernel's own, which checkpatch does not like either.
.PHONY: check-kmod-static
check-kmod-static:
	$(Q)mkdir -p $(B)/check
	$(Q)kmod/check-static $(CHECKPATCH) $(KMOD_KERNELS) >$(B)/check/kmod-static.tap; \
		status=$$?; cat $(B)/check/kmod-static.tap; exit $$status
