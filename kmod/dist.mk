# SPDX-License-Identifier: GPL-2.0-only
#
# Installing the module: as it was built for one kernel (make install), or as source from which dkms
# builds it for every kernel that comes (make dkms-install, make dkms-remove).

DKMS ?= dkms
# For example -k RELEASE; without it, the running kernel.
DKMS_FLAGS ?=
MODDIR ?= /lib/modules
DKMS_NAME := sluice/$(VERSION)
DKMS_SRC = $(DESTDIR)/usr/src/sluice-$(VERSION)
# Where udev, modprobe and the like look: packages in /usr/lib, administrators in /etc.
KMOD_CONF = $(DESTDIR)$(if $(filter /usr,$(PREFIX)),/usr/lib,/etc)
KMOD_CONFS := udev/rules.d/60-sluice.rules:60-sluice.rules modules-load.d/sluice.conf:modules-load.conf \
	modprobe.d/sluice.conf:modprobe.conf sysusers.d/sluice.conf:sysusers.conf

.PHONY: install-kmod install-kmod-conf install-dkms dkms-install dkms-remove

# A file that the administrator has changed is left alone. The group must be there before the rule is
# used, or udev drops the rule.
install-kmod-conf:
	$(call say,INSTALL,$(KMOD_CONF)/udev/rules.d/60-sluice.rules)
	$(Q)for pair in $(KMOD_CONFS); do \
		to=$(KMOD_CONF)/$${pair%:*}; from=kmod/dist/$${pair#*:}; \
		[ ! -e "$$to" ] || cmp -s $$from "$$to" || \
			{ echo "  NOTE    $$to is not ours any more and stays"; continue; }; \
		install -D -m 644 $$from "$$to" || exit 1; \
	done
	$(Q)[ -n "$(DESTDIR)" ] || getent group sluice >/dev/null || groupadd --system sluice

# The kernel it was built for is the one whose modules it joins.
install-kmod: $(B)/sluice.ko
	$(Q)if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" != 0 ]; then \
		echo "  NOTE    sluice.ko is not installed: that takes root"; \
	else \
		release=$$(modinfo -F vermagic $< | cut -d' ' -f1) && [ -n "$$release" ] && \
		to=$(DESTDIR)$(MODDIR)/$$release/updates/sluice.ko && \
		$(if $(filter 0,$(V)),printf '  %-8s%s\n' INSTALL "$$to" &&) \
		install -D -m 644 $< "$$to" && \
		$(MAKE) --no-print-directory install-kmod-conf && \
		{ [ -n "$(DESTDIR)" ] || depmod "$$release"; }; \
	fi

install-dkms: install-kmod-conf
	$(call say,INSTALL,$(DKMS_SRC))
	$(Q)rm -rf $(DKMS_SRC)
	$(Q)for f in $(KMOD_SRC); do install -D -m 644 $$f $(DKMS_SRC)/$$f || exit 1; done
	$(Q)sed 's|@VERSION@|$(VERSION)|' kmod/dist/dkms.conf.in >$(DKMS_SRC)/dkms.conf

# With DESTDIR a package is made, whose scripts will call dkms.
dkms-install:
	$(Q)[ -n "$(DESTDIR)" ] || command -v $(DKMS) >/dev/null || \
		{ echo "dkms is not installed (Debian: apt-get install dkms)" >&2; exit 1; }
	$(Q)[ -n "$(DESTDIR)" ] || [ -z "$$($(DKMS) status $(DKMS_NAME))" ] || \
		{ echo "dkms has $(DKMS_NAME) already: make dkms-remove first" >&2; exit 1; }
	$(Q)$(MAKE) --no-print-directory install-dkms
	$(Q)[ -n "$(DESTDIR)" ] || { $(DKMS) add $(DKMS_NAME) && $(DKMS) install $(DKMS_NAME) $(DKMS_FLAGS); }

dkms-remove:
	$(Q)[ -n "$(DESTDIR)" ] || [ -z "$$($(DKMS) status $(DKMS_NAME))" ] || \
		$(DKMS) remove $(DKMS_NAME) --all
	$(Q)rm -rf $(DKMS_SRC)
	$(Q)for pair in $(KMOD_CONFS); do \
		to=$(KMOD_CONF)/$${pair%:*}; \
		if [ ! -e "$$to" ] || cmp -s kmod/dist/$${pair#*:} "$$to"; then rm -f "$$to"; \
		else echo "  NOTE    $$to is not ours any more and stays"; fi; \
	done
