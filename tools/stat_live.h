/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_STAT_LIVE_H
#define SLUICE_STAT_LIVE_H

#include "stat_read.h"

struct live;

bool live_is_order(const char *name);

/* What ends a program ends a wait. */
void live_catch_signals(void);

/* Takes the terminal if there is one. @sort: an order or NULL. Returns NULL without memory. */
struct live *live_start(const char *sort);

/* @before: the look before, or NULL. Both are drawn again in live_wait(). */
void live_show(struct live *live, const struct snapshot *now, const struct snapshot *before);

/*
 * Waits for @seconds (@live may be NULL); keys and a new size of the terminal draw the same look
 * again. Returns false if the user or a signal ends it.
 */
bool live_wait(struct live *live, double seconds);

void live_end(struct live *live);

#endif /* SLUICE_STAT_LIVE_H */
