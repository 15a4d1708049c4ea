// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The sentence of the last error of each thread, and the log callback. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

#include "error.h"

#define STR_(x) #x
#define STR(x)	STR_(x)

static __thread char last_error[320];

static struct {
	pthread_mutex_t lock;
	sluice_log_fn fn;
	void *arg;
	enum sluice_log_level max;
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of the limits that any call may run into, the one that nobody remembers by its error's name. */
static void error_set(int err, const char *fmt, va_list ap)
{
	int n = vsnprintf(last_error, sizeof(last_error), fmt, ap);
	struct rlimit r;

	if (err == EMFILE && n >= 0 && n < (int)sizeof(last_error) && !getrlimit(RLIMIT_NOFILE, &r))
		snprintf(last_error + n, sizeof(last_error) - n,
			 " (RLIMIT_NOFILE of this process is %llu)",
			 (unsigned long long)r.rlim_cur);
}

int sluice_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	error_set(err, fmt, ap);
	va_end(ap);
	return -err;
}

void *sluice_fail_null(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	error_set(err, fmt, ap);
	va_end(ap);
	errno = err;
	return NULL;
}

const char *sluice_strerror(void)
{
	return last_error;
}

const char *sluice_version(void)
{
	return STR(SLUICE_VERSION_MAJOR) "." STR(SLUICE_VERSION_MINOR) "." STR(
		SLUICE_VERSION_PATCH);
}

void sluice_log_set(sluice_log_fn fn, void *arg, enum sluice_log_level max)
{
	pthread_mutex_lock(&logger.lock);
	logger.fn = fn;
	logger.arg = arg;
	logger.max = max;
	pthread_mutex_unlock(&logger.lock);
}

void sluice_log(enum sluice_log_level level, const char *fmt, ...)
{
	char line[320];
	sluice_log_fn fn;
	va_list ap;
	void *arg;

	pthread_mutex_lock(&logger.lock);
	fn = level <= logger.max ? logger.fn : NULL;
	arg = logger.arg;
	pthread_mutex_unlock(&logger.lock);
	if (!fn)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fn(arg, level, line);
}
