# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The program.  Parts that need more than a C compiler add to TOOLS_EXTRA_OBJ and TOOLS_LIBS; main.c
# refers to their nouns weakly, so that they may be left out.

TOOLS_SRC := $(filter-out tools/stat% tools/trace% tools/cuda%,$(wildcard tools/*.c))
TOOLS_OBJ := $(TOOLS_SRC:tools/%.c=$(B)/tools/%.o)
TOOLS_EXTRA_OBJ :=
TOOLS_LIBS = $(LIB_LIBS) -lxxhash -lm

-include tools/bench.mk

$(B)/tools/%.o: tools/%.c Makefile tools/build.mk
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(TOOLS_CFLAGS) -MMD -MP -c -o $@ $<

# Parts that are read later add to the list.
.SECONDEXPANSION:
$(B)/sluice: $(TOOLS_OBJ) $$(TOOLS_EXTRA_OBJ) $(B)/lib/libsluice.a
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(B)/lib/libsluice.a $(TOOLS_LIBS)

-include $(TOOLS_OBJ:.o=.d)

# What --help says is the manual.
$(B)/man/man1/sluice.1: $(B)/sluice tools/man.py
	$(call say,MAN,$(@D))
	$(Q)rm -rf $(@D)
	$(Q)python3 tools/man.py $(B)/sluice $(VERSION) $(@D)

.PHONY: tools tools-man install-tools install-tools-man demo-run
tools: $(B)/sluice
tools-man: $(B)/man/man1/sluice.1

install-tools-man: tools-man
	$(call say,INSTALL,$(DESTDIR)$(MANDIR)/man1/sluice.1)
	$(Q)install -d $(DESTDIR)$(MANDIR)/man1
	$(Q)install -m 644 $(B)/man/man1/*.1 $(DESTDIR)$(MANDIR)/man1

install-tools: tools
	$(call say,INSTALL,$(DESTDIR)$(PREFIX)/bin/sluice)
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 755 $(B)/sluice $(DESTDIR)$(PREFIX)/bin
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(Q)install -m 644 tools/sluice.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice

# A few hundred MB that every Debian machine has.
DEMO_DIRS := $(wildcard /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu) /usr/bin /usr/share
DEMO_BYTES := 400M
demo-run: tools
	$(Q)$(B)/sluice pump --transport both --rounds 3 --max-bytes $(DEMO_BYTES) $(DEMO_DIRS)
	@printf '\n%s\n%s\n\n' \
		'That was a whole job: both read every file and hash it at either end, most of their CPU time.' \
		'The transports alone, with batches of the size of training data:'
	$(Q)$(B)/sluice bench --quick --row stream_read_free

ifneq ($(and $(call have_header,liburing.h),$(call have_header,xxhash.h)),)
ALL += tools
INSTALLS += install-tools
ifneq ($(shell command -v python3),)
ALL += tools-man
INSTALLS += install-tools-man
endif
else
NOTES += "the program needs liburing.h and xxhash.h (Debian: apt-get install liburing-dev libxxhash-dev) and is left out"
endif

# ------------------------------------------------------------------ tests

$(B)/test/tools/meddle.so: tests/tools/meddle.c tools/build.mk
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -fvisibility=default -shared -fPIC -o $@ $< -ldl

$(B)/test/tools/holder: tests/tools/holder.c $(B)/lib/libsluice.a tools/build.mk
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -o $@ $< $(B)/lib/libsluice.a $(LIB_LIBS)

.PHONY: check-tools
check-tools: tools $(B)/test/tools/meddle.so $(B)/test/tools/holder
	$(Q)tests/prove tools tests/tools/test_pump tests/tools/test_help tests/tools/test_look
CHECKS += check-tools
