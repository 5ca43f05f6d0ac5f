/* Run-time behind the compiler's thread-sanitizer instrumentation, for `cargo xtask conflicts`.
 *
 * It records the accesses of the calling thread between two marks, and does nothing else. A program sets a mark by an
 * atomic store of a magic number to the first word of a buffer, whose second word says how many accesses fit. At the end the
 * second word is their number, and from the third word on each access has two: the line of 64 bytes, shifted left by one,
 * with 1 for a write; and the address of the code, counted from the start of the program.
 *
 * All atomics are sequentially consistent here, whatever order the program asked for. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BEGIN 0xf10ec0de00000001ull
#define END 0xf10ec0de00000002ull
#define RECORDED 0xf10ec0de00000003ull

extern const char __executable_start[];

static __thread uint64_t *buffer;
static __thread uint64_t count, capacity;

static inline void record(const void *at, size_t bytes, unsigned writes, const void *code)
{
	if (!buffer || !bytes)
		return;
	uint64_t last = ((uint64_t)at + bytes - 1) >> 6;
	for (uint64_t line = (uint64_t)at >> 6; line <= last; line++) {
		if (count >= capacity)
			return;
		buffer[2 + 2 * count] = line << 1 | writes;
		buffer[3 + 2 * count] = (uint64_t)code - (uint64_t)__executable_start;
		count++;
	}
}

/* Whether a store is a mark. */
static int mark(volatile uint64_t *at, uint64_t value)
{
	if (value == BEGIN) {
		capacity = at[1];
		count = 0;
		buffer = (uint64_t *)at;
		return 1;
	}
	if (value == END && buffer == (uint64_t *)at) {
		buffer = NULL;
		at[1] = count;
		at[0] = RECORDED;
		return 1;
	}
	return 0;
}

#define CODE __builtin_return_address(0)

#define PLAIN(n) \
	void __tsan_read##n(void *a) { record(a, n, 0, CODE); } \
	void __tsan_write##n(void *a) { record(a, n, 1, CODE); } \
	void __tsan_unaligned_read##n(void *a) { record(a, n, 0, CODE); } \
	void __tsan_unaligned_write##n(void *a) { record(a, n, 1, CODE); } \
	void __tsan_read_write##n(void *a) { record(a, n, 1, CODE); } \
	void __tsan_unaligned_read_write##n(void *a) { record(a, n, 1, CODE); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)

void __tsan_init(void) {}
void __tsan_func_entry(void *code) { (void)code; }
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **a, void *value) { (void)value; record(a, 8, 1, CODE); }
void __tsan_vptr_read(void **a) { record(a, 8, 0, CODE); }
void __tsan_read_range(void *a, unsigned long n) { record(a, n, 0, CODE); }
void __tsan_write_range(void *a, unsigned long n) { record(a, n, 1, CODE); }

void *__tsan_memcpy(void *to, const void *from, size_t n)
{
	record(from, n, 0, CODE);
	record(to, n, 1, CODE);
	return memcpy(to, from, n);
}

void *__tsan_memmove(void *to, const void *from, size_t n)
{
	record(from, n, 0, CODE);
	record(to, n, 1, CODE);
	return memmove(to, from, n);
}

void *__tsan_memset(void *to, int value, size_t n)
{
	record(to, n, 1, CODE);
	return memset(to, value, n);
}

#define CHANGE(bits, T, name) \
	T __tsan_atomic##bits##_fetch_##name(volatile T *a, T value, int order) \
	{ \
		(void)order; \
		record((void *)a, bits / 8, 1, CODE); \
		return __atomic_fetch_##name(a, value, __ATOMIC_SEQ_CST); \
	}

/* A failed exchange only reads. */
#define ATOMIC(bits, T) \
	T __tsan_atomic##bits##_load(const volatile T *a, int order) \
	{ \
		(void)order; \
		record((void *)a, bits / 8, 0, CODE); \
		return __atomic_load_n(a, __ATOMIC_SEQ_CST); \
	} \
	void __tsan_atomic##bits##_store(volatile T *a, T value, int order) \
	{ \
		(void)order; \
		if (bits == 64 && mark((volatile uint64_t *)a, (uint64_t)value)) \
			return; \
		record((void *)a, bits / 8, 1, CODE); \
		__atomic_store_n(a, value, __ATOMIC_SEQ_CST); \
	} \
	T __tsan_atomic##bits##_exchange(volatile T *a, T value, int order) \
	{ \
		(void)order; \
		record((void *)a, bits / 8, 1, CODE); \
		return __atomic_exchange_n(a, value, __ATOMIC_SEQ_CST); \
	} \
	T __tsan_atomic##bits##_compare_exchange_val(volatile T *a, T was, T value, int order, int failed) \
	{ \
		(void)order, (void)failed; \
		int done = __atomic_compare_exchange_n(a, &was, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		record((void *)a, bits / 8, done, CODE); \
		return was; \
	} \
	int __tsan_atomic##bits##_compare_exchange_strong(volatile T *a, T *was, T value, int order, int failed) \
	{ \
		(void)order, (void)failed; \
		int done = __atomic_compare_exchange_n(a, was, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		record((void *)a, bits / 8, done, CODE); \
		return done; \
	} \
	int __tsan_atomic##bits##_compare_exchange_weak(volatile T *a, T *was, T value, int order, int failed) \
	{ \
		(void)order, (void)failed; \
		int done = __atomic_compare_exchange_n(a, was, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		record((void *)a, bits / 8, done, CODE); \
		return done; \
	} \
	CHANGE(bits, T, add) CHANGE(bits, T, sub) CHANGE(bits, T, and) CHANGE(bits, T, or) \
	CHANGE(bits, T, xor) CHANGE(bits, T, nand)
ATOMIC(8, uint8_t) ATOMIC(16, uint16_t) ATOMIC(32, uint32_t) ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int order) { (void)order; atomic_thread_fence(memory_order_seq_cst); }
void __tsan_atomic_signal_fence(int order) { (void)order; }
