# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# Peers of sluice bench that this machine may not have.  One that is missing is named as skipped.
# They are loaded when they are measured: the program is not linked with them.

ifneq ($(call have_header,zmq.h),)
$(B)/tools/bench_zmq.o: TOOLS_CFLAGS += -DHAVE_ZMQ
else
NOTES += "sluice bench leaves ZeroMQ out (Debian: apt-get install libzmq3-dev)"
endif

CXX ?= g++
BOOST_MQ := boost/interprocess/ipc/message_queue.hpp
ifneq ($(shell printf '\43include <$(BOOST_MQ)>\n' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo y),)
$(B)/sluice: | $(B)/bench_boost.so
$(B)/bench_boost.so: tools/bench_boost.cpp tools/bench_boost.h tools/bench.mk
	$(call say,CXX,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(ALL_CPPFLAGS) -std=gnu++17 -fvisibility=hidden -Wall -Wextra $(CFLAGS) -fPIC \
		-shared -o $@ $<
else
NOTES += "sluice bench leaves Boost.Interprocess out (Debian: apt-get install g++ libboost-dev)"
endif

bench: tools
	$(Q)$(B)/sluice bench

.PHONY: check-bench
check-bench: tools
	$(Q)tests/prove bench tests/bench/run
CHECKS += check-bench
