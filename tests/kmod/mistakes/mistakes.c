// SPDX-License-Identifier: GPL-2.0-only
/*
 * One of each mistake that the debug kernel is there to find. Loading this shows that it finds them,
 * and that the runner of the tests hears of it.
 */
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);
static DEFINE_SPINLOCK(spin);
static int __rcu *guarded;

/* Not seen through by the compiler. */
static void *volatile hidden;

static void take(struct mutex *a, struct mutex *b)
{
	mutex_lock(a);
	mutex_lock(b);
	mutex_unlock(b);
	mutex_unlock(a);
}

static noinline void touch_freed(void)
{
	char *volatile p = kmalloc(40, GFP_KERNEL);

	kfree(p);
	if (p)
		p[3] = 1;
}

static noinline void touch_beyond(void)
{
	char *volatile p = kmalloc(40, GFP_KERNEL);

	if (p)
		p[40] = 1;
	kfree(p);
}

static void put_twice(void)
{
	refcount_t count = REFCOUNT_INIT(1);

	if (refcount_dec_and_test(&count))
		refcount_dec(&count);
}

static void delete_twice(void)
{
	LIST_HEAD(head);
	struct list_head entry;

	list_add(&entry, &head);
	list_del(&entry);
	list_del(&entry);
}

static void lose(void)
{
	int i;

	/* More than one, because the last one may be on a stack still. */
	for (i = 0; i < 10; i++)
		hidden = kmalloc(1000, GFP_KERNEL);
	hidden = NULL;
}

static int __init mistakes_init(void)
{
	/* Those that lockdep finds go first: it turns itself off after any of the others. */
	if (rcu_dereference(guarded))
		return -EINVAL;
	take(&first, &second);
	take(&second, &first);
	spin_lock(&spin);
	might_sleep();
	spin_unlock(&spin);
	put_twice();
	delete_twice();
	touch_freed();
	touch_beyond();
	lose();
	return 0;
}

static void __exit mistakes_exit(void)
{
}

module_init(mistakes_init);
module_exit(mistakes_exit);
MODULE_DESCRIPTION("Mistakes that a debug kernel finds");
MODULE_LICENSE("GPL");
