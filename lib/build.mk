# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# libsluice.  The same sources are built several times, each variant in a directory of its own:
#
#   build/lib    what is installed
#   build/crash  with named crash points: tests kill a process between any two shared writes
#   build/asan   AddressSanitizer and UndefinedBehaviorSanitizer
#   build/tsan   ThreadSanitizer

LIB_SRC := $(wildcard lib/*.c)
LIB_SONAME := libsluice.so.$(VERSION_MAJOR)
LIB_SO := $(B)/lib/libsluice.so.$(VERSION)

# The archive where there is one: the doorbells must not depend on the liburing of the target.
LIB_URING := $(if $(filter /%,$(shell $(CC) -print-file-name=liburing.a)),-l:liburing.a,-luring)
LIB_LIBS := $(LIB_URING) -pthread

LIB_VARIANTS := lib crash asan tsan
LIB_FLAGS_lib :=
LIB_FLAGS_crash := -DSLUICE_CRASH_POINTS
LIB_FLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
LIB_FLAGS_tsan := -fsanitize=thread

define lib_variant
$(B)/$(1)/libsluice.a: $(LIB_SRC:lib/%.c=$(B)/$(1)/%.o)
	$$(call say,AR,$$@)
	$$(Q)rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^

$(B)/$(1)/%.o: lib/%.c Makefile lib/build.mk
	$$(call say,CC,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(ALL_CPPFLAGS) $$(ALL_CFLAGS) -fPIC $$(LIB_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<

-include $(LIB_SRC:lib/%.c=$(B)/$(1)/%.d)
endef
$(foreach v,$(LIB_VARIANTS),$(eval $(call lib_variant,$(v))))

$(LIB_SO): $(LIB_SRC:lib/%.c=$(B)/lib/%.o) lib/libsluice.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_CFLAGS) $(LDFLAGS) -Wl,-soname,$(LIB_SONAME) \
		-Wl,--version-script=lib/libsluice.map -Wl,-Bsymbolic-functions -Wl,-z,defs \
		-Wl,-z,relro,-z,now -o $@ $(filter %.o,$^) $(LIB_LIBS)
	$(Q)ln -sf $(@F) $(B)/lib/$(LIB_SONAME)
	$(Q)ln -sf $(LIB_SONAME) $(B)/lib/libsluice.so

$(B)/lib/sluice.pc: lib/sluice.pc.in Makefile
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
		-e 's|@VERSION@|$(VERSION)|' $< >$@

.PHONY: lib install-lib
lib: $(B)/lib/libsluice.a $(LIB_SO)

# PREFIX may have changed since the last build.
install-lib: lib
	$(Q)rm -f $(B)/lib/sluice.pc
	$(Q)$(MAKE) --no-print-directory $(B)/lib/sluice.pc
	$(call say,INSTALL,$(DESTDIR)$(LIBDIR)/libsluice.so)
	$(Q)install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)
	$(Q)install -m 644 lib/include/sluice.h lib/include/sluice_dtype.h $(DESTDIR)$(INCLUDEDIR)
	$(Q)install -m 644 $(B)/lib/libsluice.a $(DESTDIR)$(LIBDIR)
	$(Q)install -m 755 $(LIB_SO) $(DESTDIR)$(LIBDIR)
	$(Q)cp -P $(B)/lib/$(LIB_SONAME) $(B)/lib/libsluice.so $(DESTDIR)$(LIBDIR)
	$(Q)install -m 644 $(B)/lib/sluice.pc $(DESTDIR)$(LIBDIR)/pkgconfig

$(B)/man/man3/libsluice.3: lib/include/sluice.h lib/man.py Makefile
	$(call say,MAN,$(@D))
	$(Q)python3 lib/man.py $< $(VERSION) $(@D) libsluice

.PHONY: man install-man
man: $(B)/man/man3/libsluice.3

install-man: man
	$(call say,INSTALL,$(DESTDIR)$(MANDIR)/man3/libsluice.3)
	$(Q)install -d $(DESTDIR)$(MANDIR)/man3
	$(Q)install -m 644 $(B)/man/man3/*.3 $(DESTDIR)$(MANDIR)/man3

ifneq ($(call have_header,liburing.h),)
ALL += lib
INSTALLS += install-lib
else
NOTES += "the library needs liburing.h (Debian: apt-get install liburing-dev) and is left out"
endif

ifneq ($(shell command -v python3),)
ALL += man
INSTALLS += install-man
else
NOTES += "manual pages need python3 (Debian: apt-get install python3) and are left out"
endif
