/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_TOOLS_DOCTOR_H
#define SLUICE_TOOLS_DOCTOR_H

enum verdict {
	PASS,
	WARN, /* sluice does without it */
	FAIL, /* sluice does not work here */
};

struct finding {
	enum verdict verdict;
	char text[512];
	const char *fix; /* one command, or NULL when there is none */
};

struct check {
	const char *name;
	void (*run)(struct finding *f);
};

void finding_pass(struct finding *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void finding_warn(struct finding *f, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void finding_fail(struct finding *f, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* doctor_host.c: the machine */
void check_kernel(struct finding *f);
void check_cpus(struct finding *f);
void check_numa(struct finding *f);
void check_memory(struct finding *f);
void check_memlock(struct finding *f);

/* doctor_parts.c: what sluice uses */
void check_arena(struct finding *f);
void check_huge_pages(struct finding *f);
void check_io_uring(struct finding *f);
void check_pidfd(struct finding *f);
void check_module(struct finding *f);
void check_cuda(struct finding *f);

/* doctor_bpf.c */
void check_bpf(struct finding *f);

#endif
