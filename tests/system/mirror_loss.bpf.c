// Takes frames out of the mirror at the egress of the switch's monitor port. The ranks' own traffic never passes here.
// The frame counter lives in a map, so that the loss is exact; AT_RANDOM=1 draws each frame on its own instead.
//   -DEVERY=10000 -DBURST=1 drops the last BURST of every EVERY frames, or each frame with probability BURST/EVERY.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#ifndef EVERY
#define EVERY 10000
#endif
#ifndef BURST
#define BURST 1
#endif
#ifndef AT_RANDOM
#define AT_RANDOM 0
#endif

#define SECTION(name) __attribute__((section(name), used))

struct {
  int (*type)[BPF_MAP_TYPE_ARRAY];
  int (*max_entries)[1];
  __u32* key;
  __u64* value;
} frames_seen SECTION(".maps");

static void* (*const map_lookup)(void*, const void*) = (void*)BPF_FUNC_map_lookup_elem;
static __u32 (*const random_u32)(void) = (void*)BPF_FUNC_get_prandom_u32;

SECTION("tc") int drop_some(struct __sk_buff* frame) {
  (void)frame;
  if (AT_RANDOM) return random_u32() % EVERY < BURST ? TC_ACT_SHOT : TC_ACT_OK;
  __u32 zero = 0;
  __u64* seen = map_lookup(&frames_seen, &zero);
  if (!seen) return TC_ACT_OK;
  return __sync_fetch_and_add(seen, 1) % EVERY >= EVERY - BURST ? TC_ACT_SHOT : TC_ACT_OK;
}

char program_license[] SECTION("license") = "Apache-2.0";  // no GPL-only helper is called
