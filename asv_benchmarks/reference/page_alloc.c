/* The order-0 path of memmodel/kernels/{page_alloc,pcp,watermark,lru,buddy,freelist}.py once more, in C: what compiled
 * code costs on the same records, in the same order.
 *
 * One zone, one CPU, the rules of 6.12.117, movable requests. No fallback to other types: a request that needs one
 * fails. alloc_folios() and free_folios() work on handles, as the model does; alloc_pages() and free_pages() on rows.
 * gcc -O3 -march=native -shared -fPIC page_alloc.c -o page_alloc.so
 */
#include <stdint.h>

#define MAX_ORDER 10
#define PAGEBLOCK_ORDER 9
#define TYPES 6
#define PCP_TYPES 3
#define PCP_LISTS 14
#define PCP_BATCH_SCALE_MAX 5
#define NONE 0xffffffffu
#define CHAINS 8
#define MARK 0x80000000u

enum type { MOVABLE = 1, HIGHATOMIC = 3, CMA = 4, ISOLATE = 5 };
enum kind { FREE = 0x30, PCP = 0x40, USED = 0x50 };
enum page_flag { HWPOISON = 1, LRU = 2, LRU_BATCH = 32, LRU_ISOLATED = 64 };
enum zone_flag { BELOW_HIGH = 2, RECLAIM_ACTIVE = 4, UNUSUAL = 7 };
enum pcp_flag { FREED_HIGH_ORDER = 1 };
enum { LOW = 1, HIGH = 2, MIN = 0 };

struct page { uint32_t next, prev; uint8_t state, flags, zone, refcount; };
struct block { uint8_t migratetype, bits; };
struct zone {
	int64_t free_pages, free_cma, free_highatomic, watermark[3], watermark_boost, stat_threshold;
	uint64_t nr_free[16], flags;
	int64_t allocated, freed;
};
struct pcp {
	int64_t count, high, high_min, high_max, batch, free_count, alloc_factor, free_diff, cma_diff, flags;
};
struct lru { uint32_t count, size, index[31]; };
struct folio { uint32_t index, sequence, mms, bits; };
struct memory {
	uint64_t n_pages;
	struct page *pages;
	struct block *blocks;
	struct zone *zone;
	struct pcp *pcp;
	struct lru *lru;
	struct folio *folios;
	uint64_t *slots; /* live folios, slots ever used, heads of the chains of unused ones */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t clamp(int64_t value, int64_t low, int64_t high) { return value >= high ? high : larger(value, low); }

/* -- lists --------------------------------------------------------------------------------------------------------- */

static uint32_t free_list(struct memory *m, int order, int type) { return m->n_pages + order * TYPES + type; }

static uint32_t pcp_list(struct memory *m, int order, int type)
{
	if (type >= HIGHATOMIC)
		type = MOVABLE;
	return m->n_pages + (MAX_ORDER + 1) * TYPES + order * PCP_TYPES + type;
}

static void link_after(struct page *pages, uint32_t p, uint32_t before)
{
	uint32_t after = pages[before].next;
	pages[p].prev = before;
	pages[p].next = after;
	pages[before].next = p;
	pages[after].prev = p;
}

static void unlink_page(struct page *pages, uint32_t p)
{
	pages[pages[p].prev].next = pages[p].next;
	pages[pages[p].next].prev = pages[p].prev;
}

static void add_free(struct memory *m, uint32_t p, int order, int type, int tail)
{
	uint32_t before = free_list(m, order, type);
	if (tail)
		before = m->pages[before].prev;
	link_after(m->pages, p, before);
	m->pages[p].state = FREE | order;
	m->zone->nr_free[order]++;
}

static void del_free(struct memory *m, uint32_t p, int order)
{
	unlink_page(m->pages, p);
	m->pages[p].state = 0;
	m->zone->nr_free[order]--;
}

static int block_type(struct memory *m, uint32_t p)
{
	struct block block = m->blocks[p >> PAGEBLOCK_ORDER];
	return block.bits & 1 ? ISOLATE : block.migratetype;
}

/* -- counters and watermarks --------------------------------------------------------------------------------------- */

static void count(int64_t *counter, int64_t *difference, int64_t delta, int64_t threshold)
{
	int64_t sum = *difference + delta;
	if (sum > threshold || sum < -threshold) {
		*counter += sum;
		sum = 0;
	}
	*difference = sum;
}

static void account(struct memory *m, int type, int64_t delta)
{
	struct zone *z = m->zone;
	if (type == ISOLATE)
		return;
	count(&z->free_pages, &m->pcp->free_diff, delta, z->stat_threshold);
	if (type == CMA)
		count(&z->free_cma, &m->pcp->cma_diff, delta, z->stat_threshold);
	else if (type == HIGHATOMIC)
		z->free_highatomic += delta;
}

static int watermark_ok(struct zone *z, int which)
{
	int64_t free = larger(z->free_pages, 0) - z->free_highatomic;
	return free > z->watermark[which] + z->watermark_boost;
}

static int may_use(struct zone *z, int which)
{
	if (!(z->flags & BELOW_HIGH)) {
		if (watermark_ok(z, HIGH))
			return 1;
		z->flags |= BELOW_HIGH;
	}
	return watermark_ok(z, which);
}

/* -- buddy --------------------------------------------------------------------------------------------------------- */

static void free_one(struct memory *m, uint32_t p, int order, int type)
{
	struct page *pages = m->pages;
	uint8_t zone = pages[p].zone;
	account(m, type, 1 << order);
	while (order < MAX_ORDER) {
		uint32_t buddy = p ^ (1u << order);
		if (pages[buddy].state != (FREE | order) || pages[buddy].zone != zone)
			break;
		if (order >= PAGEBLOCK_ORDER) {
			int other = block_type(m, buddy);
			if (other != type) {
				if (type >= HIGHATOMIC || other >= HIGHATOMIC)
					break;
				m->blocks[buddy >> PAGEBLOCK_ORDER].migratetype = type;
			}
		}
		del_free(m, buddy, order);
		p &= buddy;
		order++;
	}
	int tail = 0;
	if (order + 1 < MAX_ORDER) {
		uint32_t higher = (p & ~(1u << order)) ^ (1u << (order + 1));
		tail = pages[higher].state == (FREE | (order + 1)) && pages[higher].zone == zone;
	}
	add_free(m, p, order, type, tail);
}

static uint32_t take_smallest(struct memory *m, int type)
{
	for (int order = 0; order <= MAX_ORDER; order++) {
		uint32_t head = free_list(m, order, type), p = m->pages[head].next;
		if (p == head)
			continue;
		del_free(m, p, order);
		while (order > 0) {
			order--;
			add_free(m, p + (1u << order), order, type, 0);
		}
		m->pages[p].refcount = type;
		account(m, type, -1);
		return p;
	}
	return NONE;
}

static uint32_t take(struct memory *m, int type)
{
	struct zone *z = m->zone;
	if (z->free_cma > larger(z->free_pages, 0) / 2) {
		uint32_t p = take_smallest(m, CMA);
		if (p != NONE)
			return p;
	}
	return take_smallest(m, type);
}

/* -- per-CPU lists ------------------------------------------------------------------------------------------------- */

static uint32_t pop(struct memory *m, uint32_t head)
{
	uint32_t p = m->pages[head].next;
	unlink_page(m->pages, p);
	m->pcp->count--;
	return p;
}

static void push(struct memory *m, uint32_t p, uint32_t before)
{
	link_after(m->pages, p, before);
	m->pages[p].state = PCP;
	m->pcp->count++;
}

static int64_t refill_length(struct memory *m)
{
	struct pcp *pcp = m->pcp;
	int64_t high = pcp->high = clamp(pcp->high, pcp->high_min, pcp->high_max);
	if (high < pcp->batch)
		return 1;
	int64_t length = pcp->batch << pcp->alloc_factor;
	if (pcp->high_min != pcp->high_max && !(m->zone->flags & BELOW_HIGH))
		high = pcp->high = smaller(high + length, pcp->high_max);
	int64_t limit = larger(high - pcp->count - pcp->batch, pcp->batch);
	if (length <= limit && pcp->alloc_factor < PCP_BATCH_SCALE_MAX)
		pcp->alloc_factor++;
	length = smaller(length, limit);
	return length > 1 ? larger(length, 2) : length;
}

static void refill(struct memory *m, int type)
{
	uint32_t head = pcp_list(m, 0, type);
	for (int64_t n = refill_length(m); n > 0; n--) {
		uint32_t p = take(m, type);
		if (p == NONE)
			break;
		push(m, p, m->pages[head].prev);
	}
}

static void drain(struct memory *m, int64_t n, uint32_t head)
{
	struct page *pages = m->pages;
	uint32_t first = pcp_list(m, 0, 0);
	n = smaller(n, m->pcp->count);
	while (n > 0) {
		uint32_t p = pages[head].prev;
		if (p == head) {
			head = head + 1 < first + PCP_LISTS ? head + 1 : first;
			continue;
		}
		int order = pages[p].state & 15;
		unlink_page(pages, p);
		n -= 1 << order;
		m->pcp->count -= 1 << order;
		pages[p].state = pages[p].refcount = 0;
		free_one(m, p, order, block_type(m, p));
	}
}

/* The count from which a free drains; it tunes `high` on the way. */
static int64_t drain_mark(struct memory *m)
{
	struct pcp *pcp = m->pcp;
	int64_t high = pcp->high = clamp(pcp->high, pcp->high_min, pcp->high_max);
	int64_t freed = larger(pcp->free_count, pcp->batch);
	if (high == 0)
		return 0;
	if (m->zone->flags & RECLAIM_ACTIVE) {
		pcp->high = larger(pcp->high - freed, pcp->high_min);
		return smaller(pcp->batch << 2, pcp->high);
	}
	if (pcp->high_min == pcp->high_max)
		return high;
	if (m->zone->flags & BELOW_HIGH) {
		pcp->high = larger(pcp->high - freed, pcp->high_min);
		return larger(pcp->count, pcp->high_min);
	}
	if (pcp->count >= high && pcp->high < pcp->free_count + pcp->batch)
		pcp->high = clamp(pcp->free_count + pcp->batch, pcp->high_min, pcp->high_max);
	return high;
}

/* -- LRU-add batch ------------------------------------------------------------------------------------------------- */

static void drain_lru(struct memory *m)
{
	for (uint32_t i = 0; i < m->lru->count; i++) {
		struct page *page = &m->pages[m->lru->index[i]];
		page->flags = (page->flags & ~LRU_BATCH) | LRU;
	}
	m->lru->count = 0;
}

static void leave_lru(struct memory *m, uint32_t p)
{
	struct page *page = &m->pages[p];
	if (page->flags & LRU_BATCH)
		for (uint32_t i = 0; i < m->lru->count; i++)
			if (m->lru->index[i] == p)
				drain_lru(m);
	page->flags &= ~(LRU | LRU_ISOLATED);
}

/* -- requests and frees -------------------------------------------------------------------------------------------- */

static uint32_t attempt(struct memory *m, int type, int which)
{
	uint32_t head = pcp_list(m, 0, type);
	if (!may_use(m->zone, which))
		return NONE;
	m->pcp->free_count >>= 1;
	if (m->pages[head].next == head)
		refill(m, type);
	return m->pages[head].next == head ? take(m, type) : pop(m, head);
}

static uint32_t alloc_page(struct memory *m, int type)
{
	uint32_t head = pcp_list(m, 0, type), p;
	if (!(m->zone->flags & UNUSUAL) && m->pages[head].next != head && watermark_ok(m->zone, HIGH)) {
		m->pcp->free_count >>= 1;
		p = pop(m, head);
	} else {
		p = attempt(m, type, LOW);
		if (p == NONE)
			p = attempt(m, type, MIN);
		if (p == NONE)
			return NONE;
	}
	m->pages[p].state = USED;
	m->pages[p].refcount = 1;
	m->zone->allocated++;
	m->lru->index[m->lru->count++] = p;
	m->pages[p].flags |= LRU_BATCH;
	if (m->lru->count >= m->lru->size)
		drain_lru(m);
	return p;
}

static void free_page(struct memory *m, uint32_t p)
{
	struct pcp *pcp = m->pcp;
	struct page *page = &m->pages[p];
	leave_lru(m, p);
	page->refcount = 0;
	if (page->flags & HWPOISON)
		return;
	m->zone->freed++;
	int type = block_type(m, p);
	if (type == ISOLATE) {
		page->state = 0;
		free_one(m, p, 0, type);
		return;
	}
	uint32_t head = pcp_list(m, 0, type);
	push(m, p, head);
	page->refcount = type;
	pcp->alloc_factor >>= 1;
	pcp->flags &= ~FREED_HIGH_ORDER;
	if (pcp->free_count < pcp->batch << PCP_BATCH_SCALE_MAX)
		pcp->free_count++;
	int64_t high = drain_mark(m);
	if (pcp->count < high)
		return;
	drain(m, high < pcp->batch ? 1 : clamp(pcp->free_count, pcp->batch, high - pcp->batch), head);
	if (m->zone->flags & BELOW_HIGH && watermark_ok(m->zone, HIGH))
		m->zone->flags &= ~BELOW_HIGH;
}

void alloc_pages(struct memory *m, uint64_t n, uint32_t *rows)
{
	for (uint64_t i = 0; i < n; i++)
		rows[i] = alloc_page(m, MOVABLE);
}

/* Brings in what later frees will touch, as the model does. */
static void prefetch_row(struct memory *m, uint32_t row, uint32_t nearer)
{
	struct page *buddy = &m->pages[nearer ^ 1];
	__builtin_prefetch(&m->pages[row], 1);
	if (buddy->state == FREE) {
		__builtin_prefetch(&m->pages[buddy->next], 1);
		__builtin_prefetch(&m->pages[buddy->prev], 1);
	}
}

void free_pages(struct memory *m, uint64_t n, const uint32_t *rows)
{
	for (uint64_t i = 0; i < n; i++) {
		if (i + 24 < n)
			prefetch_row(m, rows[i + 12], rows[i + 6]);
		free_page(m, rows[i]);
	}
}

/* -- handles ------------------------------------------------------------------------------------------------------- */

void alloc_folios(struct memory *m, uint64_t n, int64_t *handles)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t p = alloc_page(m, MOVABLE);
		if (p == NONE)
			return;
		uint64_t *chain = &m->slots[2 + m->slots[0]++ % CHAINS], slot = *chain;
		if (slot != NONE) {
			*chain = m->folios[slot].mms;
			if (*chain != NONE)
				__builtin_prefetch(&m->folios[*chain], 1);
		} else {
			slot = m->slots[1]++;
		}
		m->folios[slot].index = p;
		m->folios[slot].mms = 1;
		m->folios[slot].bits = 0;
		m->pages[p].next = slot;
		handles[i] = (int64_t)m->folios[slot].sequence << 32 | slot;
	}
}

static struct folio *find(struct memory *m, int64_t handle)
{
	uint64_t slot = handle & NONE;
	if (handle < 0 || slot >= m->slots[1])
		return 0;
	struct folio *folio = &m->folios[slot];
	return folio->sequence == handle >> 32 && folio->index != NONE ? folio : 0;
}

/* Marks every folio before any is freed: the place of one that is stale or given twice, or -1. */
static int64_t mark_folios(struct memory *m, uint64_t n, const int64_t *handles)
{
	for (uint64_t i = 0; i < n; i++) {
		struct folio *folio = find(m, handles[i]);
		if (!folio || folio->index & MARK) {
			for (uint64_t j = 0; j < i; j++)
				m->folios[handles[j] & NONE].index &= ~MARK;
			return i;
		}
		folio->index |= MARK;
	}
	return -1;
}

void free_folios(struct memory *m, uint64_t n, const int64_t *handles)
{
	struct folio *folios = m->folios;
	if (mark_folios(m, n, handles) >= 0)
		return;
	for (uint64_t i = 0; i < n; i++) {
		if (i + 24 < n) {
			__builtin_prefetch(&folios[handles[i + 24] & NONE], 1);
			prefetch_row(m, folios[handles[i + 12] & NONE].index & ~MARK, folios[handles[i + 6] & NONE].index & ~MARK);
		}
		uint64_t slot = handles[i] & NONE, *chain = &m->slots[2 + --m->slots[0] % CHAINS];
		uint32_t p = folios[slot].index & ~MARK;
		folios[slot].sequence = (folios[slot].sequence + 1) & ~MARK;
		folios[slot].index = NONE;
		folios[slot].mms = *chain;
		*chain = slot;
		free_page(m, p);
	}
}
