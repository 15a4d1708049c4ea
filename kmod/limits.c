// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits: of one arena, of all arenas, and of each user.
 *
 * The memory cgroup of the creator is charged by tmpfs. RLIMIT_MEMLOCK is left alone on purpose:
 * whoever may open the device may pin, as much as the administrator allows here, and registering
 * an arena with io_uring must not run into a counter that already holds the same pages.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "sluice.h"

static unsigned long long max_arena_bytes;
module_param(max_arena_bytes, ullong, 0644);
MODULE_PARM_DESC(max_arena_bytes, "Largest arena; 0 (default): as max_total_bytes");

static unsigned long long max_total_bytes;
module_param(max_total_bytes, ullong, 0644);
MODULE_PARM_DESC(max_total_bytes, "All arenas together; 0 (default): three quarters of memory");

static unsigned long long max_user_bytes;
module_param(max_user_bytes, ullong, 0644);
MODULE_PARM_DESC(max_user_bytes,
		 "All arenas of a user without CAP_IPC_LOCK; 0 (default): as max_total_bytes");

static unsigned int max_user_arenas = 256;
module_param(max_user_arenas, uint, 0644);
MODULE_PARM_DESC(max_user_arenas, "Arenas of a user without CAP_IPC_LOCK; default 256");

struct sluice_user {
	struct hlist_node entry;
	kuid_t uid;
	u64 bytes;
	unsigned int arenas;
};

static DEFINE_MUTEX(limits_lock);
static DEFINE_HASHTABLE(users, 6);
static u64 total_bytes;

/*
 * Who answers for what the caller asks: in user namespaces, who made the outermost of them,
 * because a user may have thousands of user ids in there.
 */
static kuid_t user_answers(void)
{
	struct user_namespace *ns = current_user_ns();
	kuid_t uid = current_uid();

	for (; ns != &init_user_ns; ns = ns->parent)
		uid = ns->owner;
	return uid;
}

static struct sluice_user *user_find(kuid_t uid)
{
	struct sluice_user *user;

	hash_for_each_possible(users, user, entry, __kuid_val(uid)) {
		if (uid_eq(user->uid, uid))
			return user;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (user) {
		user->uid = uid;
		hash_add(users, &user->entry, __kuid_val(uid));
	}
	return user;
}

static void user_put(struct sluice_user *user)
{
	if (user->arenas)
		return;
	hash_del(&user->entry);
	kfree(user);
}

static int refuse(int err, const char *what, u64 asked, u64 allowed)
{
	pr_notice_ratelimited("sluice: %s[%d] asked for %llu, %s allows %llu\n", current->comm,
			      task_tgid_nr(current), asked, what, allowed);
	return err;
}

static int limits_check(struct sluice_user *user, u64 bytes)
{
	u64 memory = (u64)totalram_pages() << PAGE_SHIFT;
	u64 total = READ_ONCE(max_total_bytes) ?: memory / 4 * 3;
	u64 arena = READ_ONCE(max_arena_bytes) ?: total;
	u64 user_bytes = READ_ONCE(max_user_bytes) ?: total;
	u64 available = (u64)max(si_mem_available(), 0L) << PAGE_SHIFT;

	if (bytes > arena)
		return refuse(-EFBIG, "max_arena_bytes", bytes, arena);
	if (bytes > total || total_bytes > total - bytes)
		return refuse(-ENOSPC, "max_total_bytes", total_bytes + bytes, total);
	if (!capable(CAP_IPC_LOCK)) {
		if (user->arenas >= READ_ONCE(max_user_arenas))
			return refuse(-EDQUOT, "max_user_arenas", user->arenas + 1ULL,
				      READ_ONCE(max_user_arenas));
		if (user->bytes + bytes > user_bytes)
			return refuse(-EDQUOT, "max_user_bytes", user->bytes + bytes, user_bytes);
	}
	/* Before others lose their pages to one that cannot be satisfied anyway. */
	if (bytes > available)
		return refuse(-ENOMEM, "free memory", bytes, available);
	return 0;
}

/**
 * sluice_limits_charge() - Count an arena of the current user
 * @arena: remembers what to give back
 * @bytes: of both regions
 *
 * Return: 0, -EFBIG, -ENOSPC, -EDQUOT or -ENOMEM; then nothing is charged.
 */
int sluice_limits_charge(struct sluice_arena *arena, u64 bytes)
{
	struct sluice_user *user;
	int err = -ENOMEM;

	mutex_lock(&limits_lock);
	user = user_find(user_answers());
	if (user)
		err = limits_check(user, bytes);
	if (!err) {
		user->arenas++;
		user->bytes += bytes;
		total_bytes += bytes;
		arena->user = user;
		arena->charged = bytes;
	} else if (user) {
		user_put(user);
	}
	mutex_unlock(&limits_lock);
	return err;
}

void sluice_limits_uncharge(struct sluice_arena *arena)
{
	if (!arena->user)
		return;
	mutex_lock(&limits_lock);
	total_bytes -= arena->charged;
	arena->user->bytes -= arena->charged;
	arena->user->arenas--;
	user_put(arena->user);
	mutex_unlock(&limits_lock);
}
