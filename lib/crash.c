// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "crash.h"

#ifdef SLUICE_CRASH_POINTS
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Section limits, made by the linker. */
extern const struct sluice_crash_point __start_sluice_crash[], __stop_sluice_crash[];

static char armed[64];
static atomic_uint left;

void sluice_crash_arm(const char *name, unsigned int nth)
{
	strncpy(armed, name ? name : "", sizeof(armed) - 1);
	atomic_store_explicit(&left, nth, memory_order_relaxed); /* no partner: set before use */
}

const char *const *sluice_crash_names(void)
{
	static const char *names[256];
	const struct sluice_crash_point *p;
	size_t n = 0;

	for (p = __start_sluice_crash; p < __stop_sluice_crash && n < 255; p++)
		names[n++] = p->name;
	names[n] = NULL;
	return names;
}

__attribute__((constructor)) static void crash_env(void)
{
	const char *env = getenv("SLUICE_CRASH");
	char name[64] = "";
	const char *colon;

	if (!env)
		return;
	colon = strrchr(env, ':');
	strncpy(name, env, sizeof(name) - 1);
	if (colon && colon - env < (long)sizeof(name))
		name[colon - env] = '\0';
	sluice_crash_arm(name, colon ? (unsigned int)atoi(colon + 1) : 1);
}

void sluice_crash_hit(const struct sluice_crash_point *p)
{
	if (!armed[0] || strcmp(armed, p->name))
		return;
	/* Relaxed: counts only. */
	if (atomic_fetch_sub_explicit(&left, 1, memory_order_relaxed) == 1) {
		kill(getpid(), SIGKILL);
		pause();
	}
}
#endif
