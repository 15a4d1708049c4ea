/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#ifndef SLUICE_STAT_LIVE_H
#define SLUICE_STAT_LIVE_H

#include "stat_read.h"

struct live;

bool live_is_column(const char *name);

/* Takes the terminal if there is one. @sort: a column or NULL. Returns NULL without memory. */
struct live *live_start(const char *sort);

/* @before: the look before, or NULL. */
void live_show(struct live *live, const struct snapshot *now, const struct snapshot *before);

/* Waits for @seconds or a key (@live may be NULL). Returns true if the user wants to leave. */
bool live_wait(struct live *live, double seconds);

void live_end(struct live *live);

#endif /* SLUICE_STAT_LIVE_H */
