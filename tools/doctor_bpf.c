// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Whether programs of the kind that sluice stat loads are loaded and attached by this kernel. */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "doctor.h"

#define BTF_FILE "/sys/kernel/btf/vmlinux"
/* Any function that every kernel has would do. */
#define TARGET "vfs_write"

/* Bytes that follow a type, by kind and count of members. */
static size_t btf_tail(uint32_t info)
{
	size_t n = BTF_INFO_VLEN(info);

	switch (BTF_INFO_KIND(info)) {
	case BTF_KIND_INT:
	case BTF_KIND_VAR:
	case 17: /* BTF_KIND_DECL_TAG */
		return 4;
	case BTF_KIND_ARRAY:
		return sizeof(struct btf_array);
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
	case BTF_KIND_DATASEC:
	case 19: /* BTF_KIND_ENUM64 */
		return n * 12;
	case BTF_KIND_ENUM:
	case BTF_KIND_FUNC_PROTO:
		return n * 8;
	default:
		return 0;
	}
}

/* Return: the type id of a function, 0 when it is not there. */
static uint32_t btf_function(const char *btf, size_t bytes, const char *name)
{
	const struct btf_header *h = (const void *)btf;
	const char *strings, *at, *end;

	if (bytes < sizeof(*h) || h->magic != BTF_MAGIC || h->hdr_len > bytes ||
	    h->type_off > bytes - h->hdr_len || h->type_len > bytes - h->hdr_len - h->type_off ||
	    h->str_off > bytes - h->hdr_len || h->str_len > bytes - h->hdr_len - h->str_off ||
	    !h->str_len || btf[h->hdr_len + h->str_off + h->str_len - 1])
		return 0;
	strings = btf + h->hdr_len + h->str_off;
	at = btf + h->hdr_len + h->type_off;
	end = at + h->type_len;
	for (uint32_t id = 1; end - at >= (ssize_t)sizeof(struct btf_type); id++) {
		const struct btf_type *t = (const void *)at;
		size_t tail = btf_tail(t->info);

		if (BTF_INFO_KIND(t->info) == BTF_KIND_FUNC && t->name_off < h->str_len &&
		    !strcmp(strings + t->name_off, name))
			return id;
		if (tail > (size_t)(end - at) - sizeof(*t))
			return 0;
		at += sizeof(*t) + tail;
	}
	return 0;
}

static uint32_t target_find(void)
{
	int fd = open(BTF_FILE, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	uint32_t id = 0;
	struct stat st;
	char *btf = NULL;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st))
		goto out;
	btf = malloc(st.st_size + 1);
	if (!btf)
		goto out;
	while ((n = read(fd, btf + have, st.st_size - have)) > 0)
		have += n;
	id = btf_function(btf, have, TARGET);
out:
	free(btf);
	if (fd >= 0)
		close(fd);
	return id;
}

static int bpf(int cmd, union bpf_attr *attr)
{
	return syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

void check_bpf(struct finding *f)
{
	static const char without[] = "sluice stat and trace have no pipe and socket counters";
	/* Kernels that are locked down load programs, but none that calls bpf_probe_read_kernel(). */
	static const struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_1, .src_reg = BPF_REG_10},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_1, .imm = -8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_3, .src_reg = BPF_REG_10},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_probe_read_kernel},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_TRACING,
		.expected_attach_type = BPF_TRACE_FEXIT,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof(program) / sizeof(*program),
		.license = (uintptr_t) "GPL",
	};
	union bpf_attr attach = {0};
	int fd, link;

	load.attach_btf_id = target_find();
	if (!load.attach_btf_id) {
		finding_warn(f, NULL, "the kernel has no BTF (" BTF_FILE "): %s", without);
		return;
	}
	fd = bpf(BPF_PROG_LOAD, &load);
	if (fd < 0) {
		finding_warn(f, geteuid() ? "sudo sluice doctor" : NULL,
			     "a tracing program cannot be loaded%s (%s)%s: %s",
			     geteuid() ? "" : ", not even by root", strerror(errno),
			     errno == EINVAL ? ", as in a kernel that is locked down" : "",
			     without);
		return;
	}
	/* For as long as this takes the program runs, and does nothing. */
	attach.raw_tracepoint.prog_fd = fd;
	link = bpf(BPF_RAW_TRACEPOINT_OPEN, &attach);
	if (link < 0)
		finding_warn(f, NULL, "a tracing program cannot be attached (%s): %s",
			     strerror(errno), without);
	else
		finding_pass(f, "tracing programs load and attach");
	if (link >= 0)
		close(link);
	close(fd);
}
