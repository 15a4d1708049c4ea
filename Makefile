# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# sluice: one Makefile, quiet by default (V=1 shows the commands).
# Every part keeps its rules in PART/build.mk; what they produce goes to build/.
#
#   make            everything that this machine can build
#   make demo       install what is missing (Debian), build, move real files, compare with a pipe
#   make check      install what is missing (Debian), build, run every test of this machine
#   make bench      the measurements of README.md's table
#   make fuzz       the fuzzers, FUZZ_SECONDS each (default 60)
#   make install    to $(DESTDIR)$(PREFIX)
#   make clean

VERSION_MAJOR := 0
VERSION_MINOR := 1
VERSION_PATCH := 0
VERSION := $(VERSION_MAJOR).$(VERSION_MINOR).$(VERSION_PATCH)

PREFIX ?= /usr/local
DESTDIR ?=
B := build

CC ?= gcc
CLANG ?= clang
AR ?= ar
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
.PHONY: all demo check bench fuzz install clean
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

# Each part adds to these; a part whose tools are missing adds a line to NOTES instead.
ALL :=
CHECKS :=
NOTES :=

-include lib/build.mk
-include tools/build.mk
-include kmod/build.mk
-include bpf/build.mk
-include lib/cuda/build.mk
-include lib/python/build.mk
-include tests/build.mk

all: $(ALL)
	@$(foreach n,$(NOTES),printf '  %-8s%s\n' NOTE $(n);)

clean:
	$(call say,CLEAN,$(B))
	$(Q)rm -rf $(B)
