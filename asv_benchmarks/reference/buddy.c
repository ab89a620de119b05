/* The buddy lists of memmodel/kernels/buddy.py once more, in C: what compiled code costs on the same records.
 *
 * One zone, movable pages only, no folio table: frees take page frame numbers, allocations give them back.
 * gcc -O3 -march=native -shared -fPIC buddy.c -o buddy.so
 */
#include <stdint.h>
#include <stdlib.h>

#define ORDERS 11
#define TYPES 6
#define PAGEBLOCK_ORDER 9
#define FREE 0x30
#define USED 0x50
#define NONE 0xffffffffu

struct page { uint32_t next, prev; uint8_t state, flags, zone, refcount; };
struct zone { uint64_t n_pages, free_pages, nr_free[ORDERS]; struct page *pages; uint8_t *types; };

static void add(struct zone *z, uint32_t p, int order, int type, int tail)
{
	struct page *pages = z->pages;
	uint32_t before = z->n_pages + order * TYPES + type;
	if (tail)
		before = pages[before].prev;
	uint32_t after = pages[before].next;
	pages[p].prev = before;
	pages[p].next = after;
	pages[before].next = p;
	pages[after].prev = p;
	pages[p].state = FREE | order;
	z->nr_free[order]++;
}

static void del(struct zone *z, uint32_t p, int order)
{
	struct page *pages = z->pages;
	pages[pages[p].prev].next = pages[p].next;
	pages[pages[p].next].prev = pages[p].prev;
	pages[p].state = 0;
	z->nr_free[order]--;
}

static void free_one(struct zone *z, uint32_t p, int order, int type)
{
	struct page *pages = z->pages;
	uint8_t zone = pages[p].zone;
	z->free_pages += 1u << order;
	while (order < ORDERS - 1) {
		uint32_t buddy = p ^ (1u << order);
		if (pages[buddy].state != (FREE | order) || pages[buddy].zone != zone)
			break;
		if (order >= PAGEBLOCK_ORDER && z->types[buddy >> PAGEBLOCK_ORDER] != type)
			break;
		del(z, buddy, order);
		p &= buddy;
		order++;
	}
	int tail = 0;
	if (order < ORDERS - 2) {
		uint32_t higher = (p & ~(1u << order)) ^ (1u << (order + 1));
		tail = pages[higher].state == (FREE | (order + 1)) && pages[higher].zone == zone;
	}
	add(z, p, order, type, tail);
}

static uint32_t take(struct zone *z, int order, int type)
{
	for (int o = order; o < ORDERS; o++) {
		uint32_t head = z->n_pages + o * TYPES + type, p = z->pages[head].next;
		if (p == head)
			continue;
		del(z, p, o);
		while (o > order) {
			o--;
			add(z, p + (1u << o), o, type, 0);
		}
		z->free_pages -= 1u << order;
		return p;
	}
	return NONE;
}

struct zone *zone_new(uint64_t n_pages)
{
	struct zone *z = calloc(1, sizeof *z);
	z->n_pages = n_pages;
	z->pages = calloc(n_pages + ORDERS * TYPES, sizeof *z->pages);
	z->types = calloc(n_pages >> PAGEBLOCK_ORDER, 1);
	for (uint64_t b = 0; b < n_pages >> PAGEBLOCK_ORDER; b++)
		z->types[b] = 1;
	for (uint32_t h = n_pages; h < n_pages + ORDERS * TYPES; h++)
		z->pages[h].next = z->pages[h].prev = h;
	for (uint64_t p = 0; p < n_pages; p += 1u << (ORDERS - 1)) {
		add(z, p, ORDERS - 1, 1, 1);
		z->free_pages += 1u << (ORDERS - 1);
	}
	return z;
}

void zone_delete(struct zone *z)
{
	free(z->pages);
	free(z->types);
	free(z);
}

void zone_alloc(struct zone *z, int order, uint64_t n, uint32_t *pfns)
{
	for (uint64_t i = 0; i < n; i++) {
		pfns[i] = take(z, order, 1);
		if (pfns[i] != NONE)
			z->pages[pfns[i]].state = USED | order;
	}
}

void zone_free(struct zone *z, uint64_t n, const uint32_t *pfns)
{
	for (uint64_t i = 0; i < n; i++) {
		int order = z->pages[pfns[i]].state & 15;
		z->pages[pfns[i]].state = 0;
		free_one(z, pfns[i], order, z->types[pfns[i] >> PAGEBLOCK_ORDER]);
	}
}
