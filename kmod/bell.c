// SPDX-License-Identifier: GPL-2.0-only
/*
 * Bells: files of a peer that carry records.
 *
 * A bell has a short queue. When it is full, what was not read in time is merged into one
 * SLUICE_BELL_OVERFLOW, so a wake-up is never lost. Deaths are read from the log of the arena, in
 * which every bell has a place of its own.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uio.h>

#include "sluice.h"
#include "trace.h"

#define BELL_BATCH 16 /* records of one read */

static __poll_t bell_events(struct sluice_bell *bell)
{
	struct sluice_arena *arena = bell->peer->arena;
	__poll_t events = EPOLLOUT | EPOLLWRNORM;

	sluice_arena_lock(arena);
	if (bell->peer->dead)
		events = EPOLLIN | EPOLLRDNORM | EPOLLHUP;
	else if (bell->head != bell->tail || bell->overflow || bell->seen != arena->nr_deaths)
		events |= EPOLLIN | EPOLLRDNORM;
	sluice_arena_unlock(arena);
	return events;
}

/* With arena->lock held. */
static void bell_wake(struct sluice_bell *bell)
{
	wake_up_poll(&bell->wait, EPOLLIN | EPOLLRDNORM | EPOLLHUP);
}

/* Each on its own below the lock, because their number is up to user space.  May sleep. */
void sluice_bells_wake(struct sluice_arena *arena)
{
	struct sluice_bell *bell;
	unsigned long id = 0;

	do {
		sluice_arena_lock(arena);
		bell = xa_find(&arena->bells, &id, ULONG_MAX, XA_PRESENT);
		if (bell)
			bell_wake(bell);
		sluice_arena_unlock(arena);
		cond_resched();
		id++;
	} while (bell);
}

static u32 bell_pid(struct sluice_bell *bell, struct pid *pid)
{
	return pid_nr_ns(pid, ns_of_pid(bell->peer->pid));
}

static int bell_take_deaths(struct sluice_bell *bell, struct sluice_bell_record *records, int room)
{
	struct sluice_arena *arena = bell->peer->arena;
	struct sluice_death *death;
	int n = 0;

	if (arena->nr_deaths - bell->seen > SLUICE_DEATHS) {
		bell->seen = arena->nr_deaths - SLUICE_DEATHS;
		bell->overflow = true;
	}
	while (n < room && bell->seen != arena->nr_deaths) {
		death = &arena->deaths[bell->seen++ % SLUICE_DEATHS];
		records[n++] = (struct sluice_bell_record){
			.type = SLUICE_BELL_PEER_DEAD,
			.from_peer = death->peer,
			.pid = bell_pid(bell, death->pid),
			.arg = death->arg,
		};
	}
	return n;
}

/* Moves what there is to @records; 0 if there is nothing, -1 if there never will be. */
static int bell_take(struct sluice_bell *bell, struct sluice_bell_record *records, int room)
{
	struct sluice_arena *arena = bell->peer->arena;
	int n = -1;

	sluice_arena_lock(arena);
	if (bell->peer->dead)
		goto out;
	n = bell_take_deaths(bell, records, room);
	if (n < room && bell->overflow) {
		bell->overflow = false;
		records[n++] = (struct sluice_bell_record){.type = SLUICE_BELL_OVERFLOW};
	}
	while (n < room && bell->head != bell->tail) {
		records[n++] = bell->queue[bell->head % SLUICE_QUEUE];
		bell->head++;
	}
out:
	sluice_arena_unlock(arena);
	return n;
}

static ssize_t bell_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	struct sluice_bell *bell = iocb->ki_filp->private_data;
	struct sluice_bell_record records[BELL_BATCH];
	size_t room = min_t(size_t, iov_iter_count(to) / sizeof(*records), BELL_BATCH);
	int err, n;

	if (!room)
		return -EINVAL;
	while (!(n = bell_take(bell, records, room))) {
		if (iocb->ki_flags & IOCB_NOWAIT || iocb->ki_filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(bell->wait, bell_events(bell) & EPOLLIN);
		if (err)
			return err;
	}
	if (n < 0)
		return 0;
	if (copy_to_iter(records, n * sizeof(*records), to) == n * sizeof(*records))
		return n * sizeof(*records);

	/* They are gone; what is left is the duty to look at everything. */
	sluice_arena_lock(bell->peer->arena);
	bell->overflow = true;
	bell_wake(bell);
	sluice_arena_unlock(bell->peer->arena);
	return -EFAULT;
}

static void bell_push(struct sluice_bell *bell, const struct sluice_bell_record *record)
{
	if (bell->tail - bell->head < SLUICE_QUEUE) {
		bell->queue[bell->tail % SLUICE_QUEUE] = *record;
		bell->tail++;
	} else {
		bell->overflow = true;
	}
	bell_wake(bell);
}

static int bell_send(struct sluice_bell *from, const struct sluice_bell_message *message)
{
	struct sluice_arena *arena = from->peer->arena;
	struct sluice_bell_record record = {
		.type = message->type,
		.from_peer = from->peer->id,
		.from_bell = from->id,
		.arg = message->arg,
	};
	struct sluice_bell *to;
	int err = 0;

	if (message->type != SLUICE_BELL_DOORBELL && message->type != SLUICE_BELL_COMPLETION)
		return -EINVAL;
	sluice_arena_lock(arena);
	to = xa_load(&arena->bells, message->to_bell);
	if (from->peer->dead) {
		err = -ESHUTDOWN;
	} else if (!to || to->peer->dead) {
		err = -ESRCH;
	} else {
		record.pid = bell_pid(to, from->peer->pid);
		bell_push(to, &record);
	}
	sluice_arena_unlock(arena);
	if (err)
		return err;
	if (message->type == SLUICE_BELL_DOORBELL)
		trace_sluice_doorbell(from, message);
	else
		trace_sluice_completion(from, message);
	return 0;
}

static ssize_t bell_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct sluice_bell *bell = iocb->ki_filp->private_data;
	struct sluice_bell_message message;
	ssize_t done = 0;
	int err = 0;

	if (iov_iter_count(from) % sizeof(message))
		return -EINVAL;
	while (iov_iter_count(from) && !(done && signal_pending(current))) {
		if (copy_from_iter_full(&message, sizeof(message), from))
			err = bell_send(bell, &message);
		else
			err = -EFAULT;
		if (err)
			break;
		done += sizeof(message);
		cond_resched();
	}
	return done ?: err;
}

static __poll_t bell_poll(struct file *file, poll_table *wait)
{
	struct sluice_bell *bell = file->private_data;

	poll_wait(file, &bell->wait, wait);
	return bell_events(bell);
}

static long bell_open(struct sluice_peer *peer, void __user *arg)
{
	struct sluice_ioc_bell_open args;
	struct file *file;
	int err;

	err = sluice_copy_in(&args, sizeof(args), sizeof(args), arg);
	if (err)
		return err;
	if (args.bell)
		return -EINVAL;
	if (task_tgid(current) != peer->pid)
		return -EPERM;
	file = sluice_bell_create(peer, &args.bell);
	if (IS_ERR(file))
		return PTR_ERR(file);
	return sluice_install_fd(file, arg, &args, sizeof(args));
}

static long bell_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct sluice_bell *bell = file->private_data;
	struct sluice_peer *peer = bell->peer;
	void __user *uarg = (void __user *)arg;

	switch (cmd) {
	case SLUICE_IOC_BELL_OPEN:
		return bell_open(peer, uarg);
	case SLUICE_IOC_ARENA_INFO:
		return sluice_arena_info(peer->arena, peer->role, uarg);
	case SLUICE_IOC_PEER_LIST:
		return sluice_peer_list(peer->arena, uarg);
	}
	return -ENOTTY;
}

/* Takes the bell out of the arena, and the peer with it if this was its last one. */
static void bell_delist(struct sluice_bell *bell)
{
	struct sluice_peer *peer = bell->peer;
	bool last;

	sluice_arena_lock(peer->arena);
	xa_erase(&peer->arena->bells, bell->id);
	last = !--peer->nr_bells;
	sluice_arena_unlock(peer->arena);
	if (last)
		sluice_peer_leave(peer);
}

static int bell_release(struct inode *inode, struct file *file)
{
	struct sluice_bell *bell = file->private_data;
	struct sluice_peer *peer = bell->peer;

	bell_delist(bell);
	kfree(bell);
	sluice_peer_put(peer);
	return 0;
}

static void bell_show_fdinfo(struct seq_file *m, struct file *file)
{
	struct sluice_bell *bell = file->private_data;
	struct sluice_peer *peer = bell->peer;
	struct sluice_arena *arena = peer->arena;
	u64 records;
	bool dead;

	sluice_arena_show(m, arena, peer->role);
	sluice_arena_lock(arena);
	records = bell->tail - bell->head + arena->nr_deaths - bell->seen + bell->overflow;
	dead = peer->dead;
	sluice_arena_unlock(arena);
	seq_printf(m, "peer:\t%u\n", peer->id);
	seq_printf(m, "pid:\t%d\n", pid_nr_ns(peer->pid, proc_pid_ns(file_inode(m->file)->i_sb)));
	seq_printf(m, "bell:\t%u\n", bell->id);
	seq_printf(m, "dead:\t%d\n", dead);
	seq_printf(m, "records:\t%llu\n", records);
}

static const struct file_operations bell_fops = {
	.owner = THIS_MODULE,
	.release = bell_release,
	.read_iter = bell_read_iter,
	.write_iter = bell_write_iter,
	.poll = bell_poll,
	.unlocked_ioctl = bell_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = bell_show_fdinfo,
};

/* Gives the bell its id and its place in the arena. */
static int bell_enlist(struct sluice_bell *bell)
{
	struct sluice_peer *peer = bell->peer;
	struct sluice_arena *arena = peer->arena;
	int err = -EOVERFLOW;

	mutex_lock(&arena->attach_lock);
	if (arena->last_bell == U32_MAX)
		goto out;
	bell->id = arena->last_bell + 1;
	/* Nothing may sleep below the lock. */
	err = xa_reserve(&arena->bells, bell->id, GFP_KERNEL_ACCOUNT);
	if (err)
		goto out;
	arena->last_bell = bell->id;

	sluice_arena_lock(arena);
	if (peer->dead)
		err = -ESHUTDOWN;
	else if (peer->nr_bells >= SLUICE_MAX_BELLS)
		err = -EMFILE;
	if (!err) {
		bell->seen = arena->nr_deaths;
		if (!peer->nr_bells++)
			peer->first_bell = bell->id;
		xa_store(&arena->bells, bell->id, bell, 0);
	}
	sluice_arena_unlock(arena);
	if (err)
		xa_release(&arena->bells, bell->id);
out:
	mutex_unlock(&arena->attach_lock);
	return err;
}

/**
 * sluice_bell_create() - One more bell of a peer
 * @peer: gets one more reference
 * @id: out: id of the bell
 *
 * Return: its file, not yet installed, or an ERR_PTR().
 */
struct file *sluice_bell_create(struct sluice_peer *peer, u32 *id)
{
	struct sluice_bell *bell;
	struct file *file;
	int err;

	bell = kzalloc(sizeof(*bell), GFP_KERNEL_ACCOUNT);
	if (!bell)
		return ERR_PTR(-ENOMEM);
	bell->peer = peer;
	init_waitqueue_head(&bell->wait);

	err = bell_enlist(bell);
	if (err) {
		kfree(bell);
		return ERR_PTR(err);
	}
	file = anon_inode_getfile("[sluice-bell]", &bell_fops, bell, O_RDWR);
	if (IS_ERR(file)) {
		bell_delist(bell);
		kfree(bell);
		return file;
	}
	stream_open(file_inode(file), file);
	file->f_mode |= FMODE_NOWAIT;
	kref_get(&peer->ref);
	*id = bell->id;
	return file;
}
