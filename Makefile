# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# sluice: one Makefile, quiet by default (V=1 shows the commands).
# Every part keeps its rules in PART/build.mk; what they produce goes to build/.
#
#   make            everything that this machine can build
#   make demo       install what is missing (Debian), build, move real files, compare with a pipe
#   make check      install what is missing (Debian), build, run every test of this machine
#   make check-guests   likewise, the tests of module and eBPF programs in kernels booted by QEMU
#   make bench      the measurements of README.md's table
#   make fuzz       the fuzzers, FUZZ_SECONDS each (default 60)
#   make install    to $(DESTDIR)$(PREFIX)
#   make clean

VERSION_MAJOR := 0
VERSION_MINOR := 1
VERSION_PATCH := 0
VERSION := $(VERSION_MAJOR).$(VERSION_MINOR).$(VERSION_PATCH)

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DESTDIR ?=
B := build

ifeq ($(origin CC),default)
CC := gcc
endif
CLANG ?= clang
CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter
ALL_CPPFLAGS := -D_GNU_SOURCE -Ilib/include -Ikmod/uapi -I$(B)/include $(CPPFLAGS)
ALL_CFLAGS := -std=gnu11 -fvisibility=hidden $(WARN) $(CFLAGS)

V ?= 0
ifeq ($(V),0)
Q := @
say = @printf '  %-8s%s\n' '$(1)' '$(2)'
else
Q :=
say =
endif

.DEFAULT_GOAL := all
.PHONY: all demo check check-guests guests-run bench fuzz install clean demo-run check-run
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

# $(call have_header,NAME.h) is y or empty; a part that lacks something says so in NOTES.
have_header = $(shell printf '\043include <%s>\n' '$(1)' | $(CC) $(CPPFLAGS) -E - >/dev/null 2>&1 && echo y)

# Each part adds its targets to these.  A check-NAME leaves TAP in build/check/NAME.tap.
# NOTES are quoted sentences: what is left out of the build, and what would bring it back.
ALL :=
CHECKS :=
GUEST_CHECKS :=
INSTALLS :=
NOTES :=

-include lib/build.mk
-include tools/build.mk
-include kmod/build.mk
-include bpf/build.mk
-include lib/cuda/build.mk
-include lib/python/build.mk
-include tests/build.mk
-include tests/bpf/build.mk
-include tests/kmod/build.mk

all: $(ALL)
	@$(if $(NOTES),printf '  NOTE    %s\n' $(NOTES))

# What these need may not be installed yet, and make looks for it when it starts: hence a second make.
demo:
	$(Q)tests/deps base
	$(Q)$(MAKE) --no-print-directory demo-run

check:
	$(Q)tests/deps base peers check kmod bpf python
	$(Q)$(MAKE) --no-print-directory check-run

# The kernel module and the eBPF programs in kernels booted by QEMU.
check-guests:
	$(Q)tests/deps base peers check kmod bpf python
	$(Q)$(MAKE) --no-print-directory guests-run
guests-run:
	$(Q)MAKE="$(MAKE)" tests/check $(GUEST_CHECKS)

install: $(INSTALLS)

clean:
	$(call say,CLEAN,$(B))
	$(Q)rm -rf $(B)
