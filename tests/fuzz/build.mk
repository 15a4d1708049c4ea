# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# tests/fuzz/fuzz_NAME.c is a libFuzzer program; tests/fuzz/corpus/NAME holds what it starts from and
# what once was a mistake.

FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60
FUZZ_CHECK_SECONDS ?= 15
FUZZ_FLAGS := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

$(B)/fuzz/lib/%.o: lib/%.c tests/fuzz/build.mk
	$(call say,CLANG,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CLANG) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link \
		-MMD -MP -c -o $@ $<

$(FUZZERS:%=$(B)/fuzz/%): $(B)/fuzz/%: tests/fuzz/fuzz_%.c $(LIB_SRC:lib/%.c=$(B)/fuzz/lib/%.o)
	$(call say,CLANG,$@)
	$(Q)$(CLANG) $(ALL_CPPFLAGS) -Ilib $(ALL_CFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer \
		-o $@ $^ $(LIB_LIBS)

-include $(LIB_SRC:lib/%.c=$(B)/fuzz/lib/%.d)

.PHONY: fuzz check-fuzz
fuzz: $(FUZZERS:%=$(B)/fuzz/%)
	$(Q)tests/fuzz/run $(FUZZ_SECONDS) $(FUZZERS)

# The same bytes each time: a failure is the code's.
check-fuzz: $(FUZZERS:%=$(B)/fuzz/%)
	$(Q)FUZZ_ARGS=-seed=1 tests/prove fuzz tests/fuzz/check

CHECKS += check-fuzz
