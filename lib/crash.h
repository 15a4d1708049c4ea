/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Named crash points of the test build (-DSLUICE_CRASH_POINTS): places between two writes to shared
 * memory where a process may die.  SLUICE_CRASH=NAME:N kills the process with SIGKILL when it comes
 * by NAME for the Nth time (1 is the first).  In other builds a crash point is nothing.
 */
#ifndef SLUICE_CRASH_H
#define SLUICE_CRASH_H

#ifdef SLUICE_CRASH_POINTS

struct sluice_crash_point {
	const char *name;
};

/* Arm a crash point of this process at run time; NULL disarms.  Tests call this after fork(). */
__attribute__((visibility("default"))) void sluice_crash_arm(const char *name, unsigned int nth);
/* All names of this build, NULL at the end. */
__attribute__((visibility("default"))) const char *const *sluice_crash_names(void);
void sluice_crash_hit(const struct sluice_crash_point *p);

#define CRASH_POINT(n)                                                        \
	do {                                                                  \
		static const struct sluice_crash_point point_                 \
			__attribute__((used, section("sluice_crash"))) = {n}; \
		sluice_crash_hit(&point_);                                    \
	} while (0)

#else
#define CRASH_POINT(n) \
	do {           \
	} while (0)
#endif

#endif
