# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT

# ------------------------------------------------------------------ the kernel's test harness

# The oldest kernel source that there is: the harness only ever grew.  Its 30 s for a test are less than
# what a loaded or emulated machine may need.
KSELFTEST_TAR := $(firstword $(sort $(wildcard /usr/src/linux-source-*.tar.xz)))
KSELFTEST := $(B)/include/kselftest_harness.h

$(KSELFTEST):
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)[ -n "$(KSELFTEST_TAR)" ] || { echo "$@ comes from Debian's package linux-source, \
	which is not installed." >&2; exit 1; }
	$(Q)tar -xJf $(KSELFTEST_TAR) -C $(@D) --strip-components=4 --occurrence=1 --touch \
		$(addprefix $(notdir $(KSELFTEST_TAR:.tar.xz=))/tools/testing/selftests/, \
		kselftest.h kselftest_harness.h)
	$(Q)sed -i 's/^\(#define TEST_TIMEOUT_DEFAULT\) 30$$/\1 120/' $@

# ------------------------------------------------------------------ suites of the library

# tests/lib/test_NAME.c is a program; it is linked with each variant of the library.
TEST_SUITES := $(patsubst tests/lib/test_%.c,%,$(wildcard tests/lib/test_*.c))
# The harness defines functions without declaring them.
TEST_FLAGS = $(ALL_CPPFLAGS) -isystem $(B)/include -Ilib $(ALL_CFLAGS) -Wno-missing-prototypes

define test_variant
$(B)/test/$(1)/%.o: tests/lib/%.c tests/build.mk | $(KSELFTEST)
	$$(call say,CC,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(TEST_FLAGS) $$(LIB_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<

$(B)/test/$(1)/%: $(B)/test/$(1)/test_%.o $(B)/test/$(1)/util.o $(B)/$(1)/libsluice.a
	$$(call say,LD,$$@)
	$$(Q)$$(CC) $$(ALL_CFLAGS) $$(LIB_FLAGS_$(1)) $$(LDFLAGS) -o $$@ $$^ $$(LIB_LIBS)

.PRECIOUS: $(B)/test/$(1)/%.o
-include $(TEST_SUITES:%=$(B)/test/$(1)/test_%.d) $(B)/test/$(1)/util.d
endef
$(foreach v,$(LIB_VARIANTS),$(eval $(call test_variant,$(v))))
test_programs = $(addprefix $(B)/test/$(1)/,$(2))

# ------------------------------------------------------------------ stages

.PHONY: check-run check-tree
check-run:
	$(Q)MAKE="$(MAKE)" tests/check $(CHECKS)

# What the tree, the build, the installation and the manual must be like.
check-tree: all
	$(Q)tests/prove tree tests/tree

# Suites that need a variant of the library of their own.
TEST_CRASH := $(filter crash kill,$(TEST_SUITES))
TEST_HOSTILE := $(filter hostile,$(TEST_SUITES))
TEST_PLAIN := $(filter-out $(TEST_CRASH) $(TEST_HOSTILE),$(TEST_SUITES))
TEST_ASAN := $(call test_programs,asan,$(TEST_PLAIN) $(TEST_HOSTILE))
TEST_TSAN := $(call test_programs,tsan,$(TEST_PLAIN))
TEST_VALGRIND := $(call test_programs,lib,$(filter batch share,$(TEST_SUITES)))

.PHONY: check-lib check-crash check-asan check-tsan check-valgrind
check-lib: $(call test_programs,lib,$(TEST_PLAIN))
	$(Q)tests/prove lib $^

check-crash: $(call test_programs,crash,$(TEST_CRASH))
	$(Q)tests/prove crash $^

# Without address randomisation: the sanitizers' shadow wants its place.
check-asan: $(TEST_ASAN)
	$(Q)TEST_DIVISOR=10 TEST_WRAP="setarch -R" \
		ASAN_OPTIONS=detect_stack_use_after_return=1:abort_on_error=1 \
		UBSAN_OPTIONS=print_stacktrace=1 tests/prove asan $^

check-tsan: $(TEST_TSAN)
	$(Q)TEST_DIVISOR=10 TEST_WRAP="setarch -R" TSAN_OPTIONS=halt_on_error=1 \
		tests/prove tsan $^

check-valgrind: $(TEST_VALGRIND)
	$(Q)TEST_DIVISOR=100 TEST_WRAP="valgrind -q --error-exitcode=99 --leak-check=full \
		--errors-for-leak-kinds=definite --child-silent-after-fork=no" \
		tests/prove valgrind $^

CHECKS := check-tree check-lib check-crash check-asan check-tsan check-valgrind $(CHECKS)

-include tests/model/build.mk
-include tests/fuzz/build.mk
