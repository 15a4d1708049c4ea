# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# libsluice-cuda: needs cuda.h to build, and the driver only when it is used.

CUDA_HOME ?= /usr/local/cuda
CUDA_INC := $(firstword $(dir $(wildcard $(CUDA_HOME)/include/cuda.h /usr/include/cuda.h)))
NVCC ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc))

CUDA_SRC := $(wildcard lib/cuda/*.c)
CUDA_SONAME := libsluice-cuda.so.$(VERSION_MAJOR)
CUDA_SO := $(B)/lib/libsluice-cuda.so.$(VERSION)
CUDA_CPPFLAGS = $(ALL_CPPFLAGS) -isystem $(CUDA_INC)
CUDA_VARIANTS := lib asan tsan

define cuda_variant
$(B)/$(1)/libsluice-cuda.a: $(CUDA_SRC:lib/%.c=$(B)/$(1)/%.o)
	$$(call say,AR,$$@)
	$$(Q)rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^

$(B)/$(1)/cuda/%.o: lib/cuda/%.c Makefile lib/cuda/build.mk
	$$(call say,CC,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CUDA_CPPFLAGS) $$(ALL_CFLAGS) -fPIC $$(LIB_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<

-include $(CUDA_SRC:lib/%.c=$(B)/$(1)/%.d)
endef
$(foreach v,$(CUDA_VARIANTS),$(eval $(call cuda_variant,$(v))))

$(CUDA_SO): $(CUDA_SRC:lib/%.c=$(B)/lib/%.o) lib/cuda/libsluice-cuda.map $(LIB_SO)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_CFLAGS) $(LDFLAGS) -Wl,-soname,$(CUDA_SONAME) \
		-Wl,--version-script=lib/cuda/libsluice-cuda.map -Wl,-z,defs -Wl,-z,relro,-z,now \
		-o $@ $(filter %.o,$^) -L$(B)/lib -l:$(LIB_SONAME) -pthread
	$(Q)ln -sf $(@F) $(B)/lib/$(CUDA_SONAME)
	$(Q)ln -sf $(CUDA_SONAME) $(B)/lib/libsluice-cuda.so

$(B)/lib/sluice-cuda.pc: lib/cuda/sluice-cuda.pc.in Makefile
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
		-e 's|@VERSION@|$(VERSION)|' $< >$@

.PHONY: lib-cuda install-cuda
lib-cuda: $(B)/lib/libsluice-cuda.a $(CUDA_SO)

install-cuda: lib-cuda
	$(Q)rm -f $(B)/lib/sluice-cuda.pc
	$(Q)$(MAKE) --no-print-directory $(B)/lib/sluice-cuda.pc
	$(call say,INSTALL,$(DESTDIR)$(LIBDIR)/libsluice-cuda.so)
	$(Q)install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)
	$(Q)install -m 644 lib/include/sluice_cuda.h $(DESTDIR)$(INCLUDEDIR)
	$(Q)install -m 644 $(B)/lib/libsluice-cuda.a $(DESTDIR)$(LIBDIR)
	$(Q)install -m 755 $(CUDA_SO) $(DESTDIR)$(LIBDIR)
	$(Q)cp -P $(B)/lib/$(CUDA_SONAME) $(B)/lib/libsluice-cuda.so $(DESTDIR)$(LIBDIR)
	$(Q)install -m 644 $(B)/lib/sluice-cuda.pc $(DESTDIR)$(LIBDIR)/pkgconfig

$(B)/man/man3/libsluice-cuda.3: lib/include/sluice_cuda.h lib/man.py Makefile
	$(call say,MAN,$(@D))
	$(Q)python3 lib/man.py $< $(VERSION) $(@D) libsluice-cuda

ifeq ($(and $(CUDA_INC),$(call have_header,liburing.h)),)
NOTES += "libsluice-cuda needs the CUDA toolkit's headers (cuda.h) and is left out"
else
ALL += lib-cuda
INSTALLS += install-cuda
man: $(B)/man/man3/libsluice-cuda.3
TOOLS_EXTRA_OBJ += $(B)/tools/cuda_link.o $(B)/tools/cuda_pump.o
$(B)/tools/cuda_pump.o: ALL_CPPFLAGS += -isystem $(CUDA_INC)
$(B)/tools/cuda_pump.o: tools/cuda_sum.ptx
TOOLS_LIBS += $(B)/lib/libsluice-cuda.a $(B)/lib/libsluice.a -ldl
$(B)/sluice: $(B)/lib/libsluice-cuda.a
endif

ifneq ($(and $(CUDA_INC),$(call have_header,liburing.h)),)
-include tests/cuda/build.mk
CHECKS += check-cuda check-cuda-asan check-cuda-tsan
endif
