// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * An arena to look at: label "held", one channel "work" of 8, two batches queued, one held, one being
 * written.  Says "ready", waits for the end of standard input, and leaves.
 */
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void must(int ret)
{
	if (!ret)
		return;
	fprintf(stderr, "holder: %s\n", sluice_strerror());
	exit(1);
}

int main(void)
{
	struct sluice_arena_opts opts = {
		.sz = sizeof(opts), .data_bytes = 4 << 20, .block_bytes = 65536, .label = "held"};
	struct sluice_channel_opts chopts = {.sz = sizeof(chopts), .capacity = 8};
	struct sluice_batch *b, *held, *writing;
	struct sluice_channel *ch;
	struct sluice_arena *a;
	char end;

	must(sluice_arena_create(&a, &opts));
	must(sluice_channel_create(&ch, a, "work", &chopts));
	for (int i = 0; i < 3; i++) {
		must(sluice_batch_begin(ch, &b, 100000, 0));
		if (!sluice_batch_bytes_add(b, "bytes", NULL, 100000))
			must(-1);
		must(sluice_batch_publish(b));
	}
	must(sluice_channel_next(ch, &held, 0));
	must(sluice_batch_begin(ch, &writing, 1, 0));
	puts("ready");
	fflush(stdout);
	if (read(0, &end, 1) < 0)
		return 1;
	sluice_batch_abort(writing);
	sluice_batch_release(held);
	sluice_channel_close(ch);
	sluice_arena_detach(a);
	return 0;
}
