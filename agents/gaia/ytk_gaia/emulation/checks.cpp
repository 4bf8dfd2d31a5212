// What the emulation looks at while a kernel runs: bounds of every access, and races between threads.
//
// The compiler calls the functions at the end for every load and store of a unit that is built with -fsanitize=kernel-address
// (bounds; static arrays get red zones) or -fsanitize=thread (races). They are ours instead of the sanitizers' libraries: those
// want a shadow of the whole address space, which a sandboxed process may not have, and know no barrier of a GPU.
#include "runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

// Of this library: the linker defines them in each.
extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;

namespace {

// ---- bounds ---------------------------------------------------------------------------------------------------------------
struct Buffer {
  std::string kind;
  int index;
  const char* start;
  uint64_t size;
};
struct Static {
  const char* start;
  uint64_t size, whole;
  const char* name;
};
std::vector<Buffer> buffers;
std::vector<Static>& statics() {
  static std::vector<Static> found;  // filled by constructors of other units
  return found;
}
bool running = false;

[[noreturn]] void out_of_bounds(const char* at, size_t size, bool write, const char* where, long long off) {
  char text[256];
  snprintf(text, sizeof text, "out of bounds: %s of %zu bytes, %lld bytes %s %s", write ? "a store" : "a load", size,
           off < 0 ? -off : off, off < 0 ? "before" : "after the start of", where);
  (void)at;
  ytk_emulation_die(text);
}

void check_bounds(const void* address, size_t size, bool write) {
  if (!running || size == 0) return;
  const char* at = (const char*)address;
  const Buffer* nearest = nullptr;
  for (const Buffer& buffer : buffers) {
    if (at >= buffer.start && at + size <= buffer.start + buffer.size) return;
    const auto distance = [&](const Buffer& b) { return at < b.start ? b.start - at : at - (b.start + b.size); };
    if (!nearest || distance(buffer) < distance(*nearest)) nearest = &buffer;
  }
  if (ytk_emulation_on_stack(at) || ytk_emulation_in_shared(at, size)) return;
  if (at >= (const char*)&ytk_emulated && at + size <= (const char*)(&ytk_emulated + 1)) return;
  for (const Static& object : statics()) {
    if (at >= object.start && at + size <= object.start + object.size) return;
    if (at >= object.start && at < object.start + object.whole) {
      char where[160];
      snprintf(where, sizeof where, "%s of %llu bytes", object.name, (unsigned long long)object.size);
      out_of_bounds(at, size, write, where, at - object.start);
    }
  }
  // A static array of a template that is not static itself has no red zone, being one that other units may have as well.
  if (at >= &__bss_start && at + size <= &_end) return;
  if (nearest) {
    char where[160];
    snprintf(where, sizeof where, "%s %d of %llu bytes", nearest->kind.c_str(), nearest->index, (unsigned long long)nearest->size);
    out_of_bounds(at, size, write, where, at - nearest->start);
  }
  out_of_bounds(at, size, write, "memory that no kernel has", 0);
}

// ---- races ----------------------------------------------------------------------------------------------------------------
constexpr uint32_t kNobody = 0xffffffffu, kMany = 0xfffffffeu;
constexpr uint32_t kManyOfWarp = 0xffff0000u;  // plus the number of the warp that all of them are of
constexpr unsigned kMaxThreads = 1024, kWarps = kMaxThreads / 32;
constexpr uint64_t kCheckedBlocks = 64;

struct Access {
  uint32_t block = kNobody, thread = kNobody, block_time = 0, warp_time = 0;
  bool atomic = false;
};
struct Cell {
  uint64_t key = 0;  // address + 1; 0: free
  Access written, read;
};
class Table {
 public:
  Cell& at(uint64_t key) {
    if (used_ * 2 >= cells_.size()) grow();
    Cell& cell = find(key + 1);
    if (cell.key == 0) cell.key = key + 1, ++used_;
    return cell;
  }
  void clear() {
    cells_.assign(1 << 12, Cell{});
    used_ = 0;
  }

 private:
  Cell& find(uint64_t key) {
    const size_t mask = cells_.size() - 1;
    size_t place = (size_t)(key * 0x9e3779b97f4a7c15ull >> 20) & mask;
    while (cells_[place].key != 0 && cells_[place].key != key) place = (place + 1) & mask;
    return cells_[place];
  }
  void grow() {
    std::vector<Cell> old = std::move(cells_);
    cells_.assign(std::max<size_t>(1 << 12, old.size() * 2), Cell{});
    for (Cell& cell : old) {
      if (cell.key != 0) find(cell.key) = cell;
    }
  }
  std::vector<Cell> cells_;
  size_t used_ = 0;
};
Table words, bytes;  // accesses of at least four bytes, by word; smaller ones, by byte
bool checked = false;
uint64_t stride = 1;
uint32_t block_number = 0, block_time = 0, warp_time[kWarps];

bool global_memory(const char* at) {
  return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& b) { return at >= b.start && at < b.start + b.size; });
}

// The warp that has made an access; none that exists where it was several.
uint32_t warp_of(uint32_t thread) {
  return thread == kMany ? kMany : thread >= kManyOfWarp ? thread - kManyOfWarp : thread / 32;
}

// Whether nothing orders two accesses: different threads, and no barrier between them.
bool unordered(const Access& before, uint32_t thread, bool atomic, bool global) {
  if (before.thread == kNobody || (before.atomic && atomic)) return false;
  if (before.block != block_number) return global;  // shared memory is another one in each block
  if (before.thread == thread || before.block_time != block_time) return false;
  if (warp_of(before.thread) == thread / 32) return before.warp_time == warp_time[thread / 32];
  return true;
}

void race(const char* at, size_t size, const char* what, const Access& before, uint32_t thread) {
  char text[300], who[60], where[100] = "shared memory";
  for (const Buffer& b : buffers) {
    if (at >= b.start && at < b.start + b.size) snprintf(where, sizeof where, "byte %lld of %s %d", (long long)(at - b.start), b.kind.c_str(), b.index);
  }
  if (before.thread >= kManyOfWarp) snprintf(who, sizeof who, "several threads");
  else snprintf(who, sizeof who, "thread %u of block %u", before.thread, before.block);
  snprintf(text, sizeof text, "race: %s of %zu bytes by thread %u of block %u and %s, with no barrier between them, on %s", what, size, thread,
           block_number, who, where);
  ytk_emulation_say(text);
  ytk_emulation_fail();
  checked = false;  // one is enough
}

void look(Cell& cell, const char* at, size_t size, bool write, bool atomic, bool global) {
  const uint32_t thread = ytk_emulation_thread();
  if (unordered(cell.written, thread, atomic, global)) return race(at, size, write ? "two stores" : "a load and a store", cell.written, thread);
  if (write && unordered(cell.read, thread, atomic, global)) return race(at, size, "a store and a load", cell.read, thread);
  Access& mine = write ? cell.written : cell.read;
  // Of one warp, what was before its last barrier is in order with all that the warp does from now on.
  const bool same_warp = warp_of(mine.thread) == thread / 32, past = same_warp && mine.warp_time != warp_time[thread / 32];
  const bool shared = !write && !past && mine.thread != kNobody && mine.thread != thread && mine.block_time == block_time && mine.block == block_number;
  const uint32_t many = same_warp ? kManyOfWarp + thread / 32 : kMany;
  mine = Access{block_number, shared ? many : thread, block_time, warp_time[thread / 32], atomic};
}

void check_race(const void* address, size_t size, bool write, bool atomic) {
  if (!checked || ytk_emulation_on_stack(address)) return;
  const char* at = (const char*)address;
  if (at >= (const char*)&ytk_emulated && at < (const char*)(&ytk_emulated + 1)) return;
  const bool global = global_memory(at);
  if (size >= 4 && (uintptr_t)at % 4 == 0) {
    for (size_t k = 0; k < size && checked; k += 4) look(words.at((uint64_t)(uintptr_t)(at + k) >> 2), at, size, write, atomic, global);
  } else {
    for (size_t k = 0; k < size && checked; ++k) look(bytes.at((uint64_t)(uintptr_t)(at + k)), at, size, write, atomic, global);
  }
}

}  // namespace

bool ytk_emulation_in_buffer(const void* at) { return global_memory((const char*)at); }

// ---- events ---------------------------------------------------------------------------------------------------------------
void ytk_emulation_launch_begins(uint64_t blocks) {
  running = true;
  words.clear();
  bytes.clear();
  // Neighbours in pairs, spread over the grid: what one block does beyond its share, it does to the next.
  stride = blocks <= kCheckedBlocks ? 1 : 2 * ((blocks + kCheckedBlocks - 1) / kCheckedBlocks);
}
void ytk_emulation_block_begins(uint64_t block) {
  checked = stride == 1 || block % stride < 2;
  block_number = (uint32_t)block;
  ++block_time;
  std::fill(warp_time, warp_time + kWarps, 0u);
}
void ytk_emulation_launch_ends() { running = checked = false; }
void ytk_emulation_block_synchronised() { ++block_time; }
void ytk_emulation_warp_synchronised(unsigned first) { ++warp_time[first / 32]; }
void ytk_emulation_atomic(const void* at, size_t size) { check_race(at, size, true, true); }

extern "C" {

void ytk_emulation_buffer(const char* kind, int index, const void* start, uint64_t size) {
  buffers.push_back({kind, index, (const char*)start, size});
}
void ytk_emulation_forget_buffers() { buffers.clear(); }

// ---- -fsanitize=kernel-address --------------------------------------------------------------------------------------------
struct ytk_sanitizer_global {
  const void* start;
  size_t size, whole;
  const char* name;
  const char* unit;
  size_t dynamic;
  void* place;
  size_t odr;
};
void __asan_register_globals(ytk_sanitizer_global* globals, size_t count) {
  for (size_t k = 0; k < count; ++k) statics().push_back({(const char*)globals[k].start, globals[k].size, globals[k].whole, globals[k].name});
}
void __asan_unregister_globals(ytk_sanitizer_global*, size_t) {}
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const char*) {}
void __asan_after_dynamic_init() {}
#define YTK_ASAN(size)                                                                     \
  void __asan_load##size##_noabort(const void* at) { check_bounds(at, size, false); }      \
  void __asan_store##size##_noabort(const void* at) { check_bounds(at, size, true); }
YTK_ASAN(1)
YTK_ASAN(2)
YTK_ASAN(4)
YTK_ASAN(8)
YTK_ASAN(16)
#undef YTK_ASAN
void __asan_loadN_noabort(const void* at, size_t size) { check_bounds(at, size, false); }
void __asan_storeN_noabort(const void* at, size_t size) { check_bounds(at, size, true); }

// ---- -fsanitize=thread ----------------------------------------------------------------------------------------------------
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define YTK_TSAN(size)                                                                               \
  void __tsan_read##size(void* at) { check_race(at, size, false, false); }                           \
  void __tsan_write##size(void* at) { check_race(at, size, true, false); }                           \
  void __tsan_volatile_read##size(void* at) { check_race(at, size, false, false); }                  \
  void __tsan_volatile_write##size(void* at) { check_race(at, size, true, false); }                  \
  void __tsan_unaligned_read##size(const void* at) { check_race(at, size, false, false); }           \
  void __tsan_unaligned_write##size(void* at) { check_race(at, size, true, false); }
YTK_TSAN(1)
YTK_TSAN(2)
YTK_TSAN(4)
YTK_TSAN(8)
YTK_TSAN(16)
#undef YTK_TSAN
void __tsan_read_range(void* at, size_t size) { check_race(at, size, false, false); }
void __tsan_write_range(void* at, size_t size) { check_race(at, size, true, false); }

}  // extern "C"
