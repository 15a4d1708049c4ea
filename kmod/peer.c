// SPDX-License-Identifier: GPL-2.0-only
/*
 * Peers: processes that attached, and how the others learn that one is gone.
 *
 * Three things end a peer, whichever comes first:
 * - its last bell is closed while the process goes on;
 * - the process exits. Descriptors say little about that: a child may have inherited them, another
 *   process may have got them by SCM_RIGHTS. So the peer waits where pidfds wait, and is told when
 *   all threads are gone and all files of the process are closed. That is late on purpose: when
 *   a death is announced, no device file of the process can have DMA into the arena in flight;
 * - the process calls execve(), which ends its address space.
 *
 * A process that was waited for is dead in every answer from then on. The kernel wakes pidfds while
 * it holds the lock of tasks for writing, which wait() takes too. In there nothing of ours can be
 * locked, so the peer goes to a list without a lock (arena->gone), and whoever takes arena->lock
 * first moves those on the list into the log of deaths. Only waking the bells is left to a work,
 * because there may be many of them.
 */
#include <linux/file.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sluice.h"
#include "trace.h"

#define PEER_WATCHED 0 /* bit of sluice_peer.watched */

static struct workqueue_struct *peer_wq;

static void peer_release(struct kref *ref)
{
	struct sluice_peer *peer = container_of(ref, struct sluice_peer, ref);

	sluice_arena_put(peer->arena);
	put_pid(peer->pid);
	kfree(peer);
	module_put(THIS_MODULE);
}

void sluice_peer_put(struct sluice_peer *peer)
{
	kref_put(&peer->ref, peer_release);
}

/* With arena->lock held. */
static void peer_bury(struct sluice_peer *peer, u32 reason, int status)
{
	struct sluice_arena *arena = peer->arena;
	struct sluice_death *death = &arena->deaths[arena->nr_deaths % SLUICE_DEATHS];

	if (peer->dead)
		return;
	peer->dead = true;
	list_del(&peer->entry);
	arena->nr_peers--;
	put_pid(death->pid);
	death->pid = get_pid(peer->pid);
	death->peer = peer->id;
	death->arg = SLUICE_DEAD(reason, status);
	arena->nr_deaths++;
	trace_sluice_peer_dead(peer, reason, status);
}

/**
 * sluice_arena_lock() - Take arena->lock, and see everybody dead who is
 * @arena: arena
 */
void sluice_arena_lock(struct sluice_arena *arena) __acquires(&arena->lock)
{
	struct sluice_peer *peer, *next;
	struct llist_node *first;

	spin_lock(&arena->lock);
	/* Last in, first out; a peer stays until its work has come by here too. */
	first = llist_reverse_order(llist_del_all(&arena->gone));
	llist_for_each_entry_safe(peer, next, first, gone)
		peer_bury(peer, SLUICE_DEAD_EXIT, peer->status);
}

void sluice_arena_unlock(struct sluice_arena *arena) __releases(&arena->lock)
{
	spin_unlock(&arena->lock);
}

static void peer_announce(struct sluice_peer *peer, u32 reason)
{
	sluice_arena_lock(peer->arena);
	peer_bury(peer, reason, 0);
	sluice_arena_unlock(peer->arena);
	sluice_bells_wake(peer->arena);
}

/* For one that nobody could have met yet. */
static void peer_forget(struct sluice_peer *peer)
{
	struct sluice_arena *arena = peer->arena;

	sluice_arena_lock(arena);
	if (!peer->dead) {
		peer->dead = true;
		list_del(&peer->entry);
		arena->nr_peers--;
	}
	sluice_arena_unlock(arena);
}

static void peer_unwatch(struct sluice_peer *peer)
{
	if (!test_and_clear_bit(PEER_WATCHED, &peer->watched))
		return;
	remove_wait_queue(&peer->pid->wait_pidfd, &peer->exit_wait);
	mmu_notifier_unregister(&peer->mm_notifier, peer->mm);
	sluice_peer_put(peer);
}

static bool peer_exiting(struct sluice_peer *peer)
{
	struct task_struct *task;
	bool exiting;

	rcu_read_lock();
	task = pid_task(peer->pid, PIDTYPE_TGID);
	exiting = !task || !atomic_read(&task->signal->live);
	rcu_read_unlock();
	return exiting;
}

/**
 * sluice_peer_leave() - The last bell was closed
 * @peer: peer
 *
 * If that is part of its exit, the end of the exit will tell, and will know the status.
 */
void sluice_peer_leave(struct sluice_peer *peer)
{
	if (peer_exiting(peer))
		return;
	peer_announce(peer, SLUICE_DEAD_LEFT);
	peer_unwatch(peer);
}

static void peer_exit_work(struct work_struct *work)
{
	struct sluice_peer *peer = container_of(work, struct sluice_peer, exit_work);

	sluice_arena_lock(peer->arena);
	sluice_arena_unlock(peer->arena);
	sluice_bells_wake(peer->arena);
	peer_unwatch(peer);
	sluice_peer_put(peer);
}

/* Called with the lock of tasks held and interrupts off. */
static int peer_exit_wake(struct wait_queue_entry *wait, unsigned int mode, int sync, void *key)
{
	struct sluice_peer *peer = container_of(wait, struct sluice_peer, exit_wait);
	struct task_struct *task;
	bool gone;

	rcu_read_lock();
	task = pid_task(peer->pid, PIDTYPE_TGID);
	gone = !task || (task->exit_state && thread_group_empty(task));
	if (task && gone)
		peer->status = task->signal->flags & SIGNAL_GROUP_EXIT
				       ? task->signal->group_exit_code
				       : task->exit_code;
	rcu_read_unlock();
	if (!gone)
		return 0;

	/* Once: some kernels wake twice. */
	list_del_init(&wait->entry);
	kref_get(&peer->ref);
	llist_add(&peer->gone, &peer->arena->gone);
	queue_work(peer_wq, &peer->exit_work);
	return 1;
}

/* The address space goes: by exit, which will be told later, or by execve(). */
static void peer_mm_release(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct sluice_peer *peer = container_of(notifier, struct sluice_peer, mm_notifier);

	if (!peer_exiting(peer))
		peer_announce(peer, SLUICE_DEAD_EXEC);
}

static const struct mmu_notifier_ops peer_mm_ops = {
	.release = peer_mm_release,
};

static int peer_watch(struct sluice_peer *peer)
{
	int err;

	peer->mm = current->mm;
	peer->mm_notifier.ops = &peer_mm_ops;
	err = mmu_notifier_register(&peer->mm_notifier, peer->mm);
	if (err)
		return err;
	init_waitqueue_func_entry(&peer->exit_wait, peer_exit_wake);
	INIT_WORK(&peer->exit_work, peer_exit_work);
	kref_get(&peer->ref);
	set_bit(PEER_WATCHED, &peer->watched);
	add_wait_queue(&peer->pid->wait_pidfd, &peer->exit_wait);
	return 0;
}

static struct sluice_peer *peer_create(struct sluice_arena *arena, u32 role)
{
	struct sluice_peer *peer;
	int err = 0;

	peer = kzalloc(sizeof(*peer), GFP_KERNEL_ACCOUNT);
	if (!peer)
		return ERR_PTR(-ENOMEM);
	__module_get(THIS_MODULE);
	kref_init(&peer->ref);
	kref_get(&arena->ref);
	peer->arena = arena;
	peer->role = role;
	peer->pid = get_pid(task_tgid(current));

	sluice_arena_lock(arena);
	if (arena->nr_peers >= SLUICE_MAX_PEERS)
		err = -EUSERS;
	else if (arena->last_peer == U32_MAX)
		err = -EOVERFLOW;
	if (!err) {
		peer->id = ++arena->last_peer;
		list_add_tail(&peer->entry, &arena->peers);
		arena->nr_peers++;
	} else {
		peer->dead = true;
	}
	sluice_arena_unlock(arena);

	if (!err) {
		err = peer_watch(peer);
		if (err)
			peer_forget(peer);
	}
	if (err) {
		sluice_peer_put(peer);
		return ERR_PTR(err);
	}
	return peer;
}

/**
 * sluice_peer_attach() - Make the current process a peer
 * @arena: arena
 * @rights: SLUICE_IOC_ROLE_* that the descriptor carries
 * @arg: struct sluice_ioc_peer_attach
 *
 * Return: descriptor of the first bell, or a negative errno.
 */
long sluice_peer_attach(struct sluice_arena *arena, u32 rights, void __user *arg)
{
	struct sluice_ioc_peer_attach args;
	struct sluice_peer *peer;
	struct file *file;
	int err;

	err = sluice_copy_in(&args, sizeof(args), sizeof(args), arg);
	if (err)
		return err;
	if (args.peer || args.bell ||
	    (args.role != SLUICE_IOC_ROLE_PRODUCER && args.role != SLUICE_IOC_ROLE_CONSUMER))
		return -EINVAL;
	if (rights == SLUICE_IOC_ROLE_CONSUMER && args.role != SLUICE_IOC_ROLE_CONSUMER)
		return -EPERM;

	peer = peer_create(arena, args.role);
	if (IS_ERR(peer))
		return PTR_ERR(peer);
	file = sluice_bell_create(peer, &args.bell);
	if (IS_ERR(file)) {
		peer_forget(peer);
		peer_unwatch(peer);
		sluice_peer_put(peer);
		return PTR_ERR(file);
	}
	args.peer = peer->id;
	trace_sluice_peer_attach(peer);
	sluice_peer_put(peer);
	return sluice_install_fd(file, arg, &args, sizeof(args));
}

long sluice_peer_list(struct sluice_arena *arena, void __user *arg)
{
	struct sluice_ioc_peer_list args;
	struct sluice_ioc_peer_info *infos;
	struct sluice_peer *peer;
	u32 room, count = 0;
	int err;

	err = sluice_copy_in(&args, sizeof(args), sizeof(args), arg);
	if (err)
		return err;
	room = min_t(u32, args.count, SLUICE_MAX_PEERS);
	infos = kvcalloc(room, sizeof(*infos), GFP_KERNEL_ACCOUNT);
	if (!infos)
		return -ENOMEM;

	sluice_arena_lock(arena);
	args.count = arena->nr_peers;
	list_for_each_entry(peer, &arena->peers, entry) {
		if (count == room)
			break;
		infos[count++] = (struct sluice_ioc_peer_info){
			.peer = peer->id,
			.role = peer->role,
			.pid = pid_vnr(peer->pid),
			.bell = peer->first_bell,
		};
	}
	sluice_arena_unlock(arena);

	if (copy_to_user(u64_to_user_ptr(args.peers), infos, count * sizeof(*infos)))
		err = -EFAULT;
	kvfree(infos);
	return err ?: sluice_copy_out(arg, &args, sizeof(args));
}

int sluice_peer_init(void)
{
	peer_wq = alloc_workqueue("sluice", WQ_UNBOUND | WQ_HIGHPRI, 0);
	return peer_wq ? 0 : -ENOMEM;
}

/* Waits for works that have dropped the last reference to the module and are about to return. */
void sluice_peer_exit(void)
{
	destroy_workqueue(peer_wq);
}
