# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# tests/cuda/test_NAME.c is a program.  Linked with gpu_fake.c it runs anywhere, over a driver of our
# own; linked with gpu_real.cu it runs on a GPU.  fake_test_NAME.c runs over the fake driver only.

CUDA_SUITES := $(patsubst tests/cuda/test_%.c,%,$(wildcard tests/cuda/test_*.c))
CUDA_FAKE_SUITES := $(patsubst tests/cuda/fake_test_%.c,%,$(wildcard tests/cuda/fake_test_*.c))
CUDA_TEST_VARIANTS := lib asan tsan
CUDA_TEST_FLAGS = $(CUDA_CPPFLAGS) -isystem $(B)/include $(ALL_CFLAGS) -Wno-missing-prototypes

define cuda_test_variant
$(B)/test/cuda-$(1)/driver/libcuda.so.1: tests/cuda/fake_cuda.c tests/cuda/fake_stream.c \
		tests/cuda/fake_kernel.c tools/pump_sum.h \
		$(wildcard tests/cuda/fake_*.h) tests/cuda/build.mk
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CUDA_CPPFLAGS) $$(ALL_CFLAGS) -fvisibility=default $$(if $$(filter tsan,$(1)), \
		$$(LIB_FLAGS_tsan)) -fPIC -shared -Wl,-soname,libcuda.so.1 -o $$@ $$(filter %.c,$$^) -pthread

$(B)/test/cuda-$(1)/%.o: tests/cuda/%.c tests/cuda/build.mk | $(B)/include/kselftest_harness.h
	$$(call say,CC,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CUDA_TEST_FLAGS) $$(LIB_FLAGS_$(1)) -MMD -MP -c -o $$@ $$<

cuda_fake_link_$(1) = $$(CC) $$(ALL_CFLAGS) $$(LIB_FLAGS_$(1)) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) $$(LIB_LIBS) -ldl
cuda_fake_needs_$(1) := $(B)/test/cuda-$(1)/gpu_fake.o $(B)/test/$(1)/util.o \
	$(B)/$(1)/libsluice-cuda.a $(B)/$(1)/libsluice.a

$(CUDA_SUITES:%=$(B)/test/cuda-$(1)/%): $(B)/test/cuda-$(1)/%: $(B)/test/cuda-$(1)/test_%.o \
		$$(cuda_fake_needs_$(1)) | $(B)/test/cuda-$(1)/driver/libcuda.so.1
	$$(call say,LD,$$@)
	$$(Q)$$(cuda_fake_link_$(1))

$(CUDA_FAKE_SUITES:%=$(B)/test/cuda-$(1)/%): $(B)/test/cuda-$(1)/%: $(B)/test/cuda-$(1)/fake_test_%.o \
		$$(cuda_fake_needs_$(1)) | $(B)/test/cuda-$(1)/driver/libcuda.so.1
	$$(call say,LD,$$@)
	$$(Q)$$(cuda_fake_link_$(1))

$(B)/test/cuda-$(1)/link: $(B)/tools/cuda_link.o
.PRECIOUS: $(B)/test/cuda-$(1)/%.o
-include $(wildcard $(B)/test/cuda-$(1)/*.d)
# A sanitizer's run time cannot be loaded into the example and the program.
CUDA_TESTS_$(1) := $(addprefix $(B)/test/cuda-$(1)/,$(CUDA_SUITES) \
	$(if $(filter lib,$(1)),$(CUDA_FAKE_SUITES),$(filter-out example pump,$(CUDA_FAKE_SUITES))))
endef
$(foreach v,$(CUDA_TEST_VARIANTS),$(eval $(call cuda_test_variant,$(v))))

.PHONY: check-cuda check-cuda-asan check-cuda-tsan
check-cuda: $(CUDA_TESTS_lib) | $(B)/gpu/example_feed $(B)/sluice
	$(Q)tests/prove cuda $^
check-cuda-asan: $(CUDA_TESTS_asan)
	$(Q)TEST_DIVISOR=4 tests/prove cuda-asan $^
check-cuda-tsan: $(CUDA_TESTS_tsan)
	$(Q)TEST_DIVISOR=8 tests/prove cuda-tsan $^

# ------------------------------------------------------------------ on a GPU

# Built where nvcc is, run where a GPU is: build/gpu/ is all that has to be carried there.
CUDA_ARCH ?= -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90
CUDA_RUNTIME = -L$(CUDA_INC)../lib64 -l:libcudart_static.a -ldl -lrt
GPU_PROGRAMS := $(CUDA_SUITES:%=$(B)/gpu/%) $(B)/gpu/bench
GPU_LIBS := $(B)/lib/libsluice-cuda.a $(B)/lib/libsluice.a

$(B)/gpu/gpu_real.o: tests/cuda/gpu_real.cu tests/cuda/gpu.h tests/cuda/build.mk
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_ARCH) -O2 -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics -c -o $@ $<

$(CUDA_SUITES:%=$(B)/gpu/%): $(B)/gpu/%: $(B)/test/cuda-lib/test_%.o $(B)/gpu/gpu_real.o \
		$(B)/test/lib/util.o $(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS) $(CUDA_RUNTIME)

$(B)/gpu/bench: $(patsubst tests/cuda/%.c,$(B)/test/cuda-lib/%.o,$(wildcard tests/cuda/bench*.c)) \
		$(B)/gpu/gpu_real.o $(B)/test/lib/util.o $(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS) $(CUDA_RUNTIME)

$(B)/gpu/roundtrip: $(B)/test/cuda-lib/roundtrip.o $(B)/gpu/gpu_real.o $(B)/test/lib/util.o $(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS) $(CUDA_RUNTIME)
GPU_PROGRAMS += $(B)/gpu/roundtrip

# README.md's example: compiled as a user would, run over the fake driver and on a GPU.
$(B)/gpu/example_feed: tests/cuda/example_feed.c $(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -O2 -Wall -Wextra -Werror -Ilib/include -o $@ $< $(GPU_LIBS) $(LIB_LIBS) -ldl
GPU_PROGRAMS += $(B)/gpu/example_feed

# What of the program concerns a GPU, with no library that a host may lack.
GPU_TOOLS_OBJ := $(filter-out $(B)/tools/bench%,$(TOOLS_OBJ)) $(B)/tools/cuda_link.o $(B)/tools/cuda_pump.o
$(B)/gpu/sluice: $(GPU_TOOLS_OBJ) $(GPU_LIBS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIB_LIBS) -l:libxxhash.a -ldl -lm
ifneq ($(filter /%,$(shell $(CC) -print-file-name=libxxhash.a)),)
GPU_PROGRAMS += $(if $(filter tools,$(ALL)),$(B)/gpu/sluice)
endif

$(B)/gpu/gpu_all.sh: tests/cuda/gpu_all.sh
	$(Q)mkdir -p $(@D)
	$(Q)cp $< $@

# compute-sanitizer, for hosts that have none: from NVIDIA's package for Python, which only carries it.
SANITIZER := nvidia-cuda-sanitizer-api<13.1
$(B)/gpu/sanitizer/compute-sanitizer:
	$(call say,GET,$@)
	$(Q)rm -rf $(@D) && mkdir -p $(@D)/wheel
	$(Q)python3 -m pip -q download --no-deps -d $(@D)/wheel '$(SANITIZER)'
	$(Q)python3 -m zipfile -e $(@D)/wheel/*.whl $(@D)/wheel
	$(Q)mv $(@D)/wheel/nvidia/cu*/bin/* $(@D)/wheel/nvidia/cu*/lib/*Target* \
		$(@D)/wheel/nvidia/cu*/lib/*Placeholder* $(@D)/wheel/nvidia/cu*/lib/*public* $(@D)
	$(Q)chmod +x $@
	$(Q)rm -rf $(@D)/wheel

.PHONY: gpu gpu-sanitizer check-gpu bench-gpu
gpu-sanitizer: $(B)/gpu/sanitizer/compute-sanitizer
gpu: $(GPU_PROGRAMS) $(B)/gpu/gpu_all.sh
check-gpu: gpu
	$(Q)$(B)/gpu/gpu_all.sh $(B)/gpu/results check
bench-gpu: gpu
	$(Q)$(B)/gpu/gpu_all.sh $(B)/gpu/results bench

ifneq ($(NVCC),)
ALL += gpu
else
NOTES += "the tests and measurements on a GPU need nvcc of the CUDA toolkit and are left out"
endif
