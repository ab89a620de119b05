/* Folio after folio with libc's memcpy: what a copy costs without a model around it.
 *
 * The loop is C so that an interpreter's does not flatter the other side.
 * gcc -O3 -march=native -shared -fPIC copy.c -o copy.so
 */
#include <stdint.h>
#include <string.h>

void copy_folios(uint8_t *memory, uint64_t n, const uint64_t *targets, const uint64_t *sources, uint64_t folio_bytes)
{
	for (uint64_t i = 0; i < n; i++)
		memcpy(memory + targets[i], memory + sources[i], folio_bytes);
}
