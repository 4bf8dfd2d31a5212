// Runs CUDA kernels on a CPU: one fiber per thread of a block, blocks one after the other. Linked into an emulated candidate.
//
// Fibers run until they meet a barrier; a thread that meets none costs no switch. The order in which threads and blocks get their
// turn is chosen from outside (0 forward, 1 backward, 2 shuffled): a result that depends on it is a race.
// What goes wrong is said in one line on standard error, "ytk-emulation: <what>", and the launch fails.
#include "runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
// A switch saves what the ABI lets a callee use; ucontext saves the signal mask as well, by a system call each time.
extern "C" void ytk_switch(void** from, void* to);
asm(R"(
.text
.globl ytk_switch
.hidden ytk_switch
.type ytk_switch,@function
ytk_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size ytk_switch,.-ytk_switch
)");
#else
#include <ucontext.h>
#endif

extern "C" {
ytk_emulated_place ytk_emulated;
}

namespace {

constexpr size_t kStack = 128 * 1024;
constexpr unsigned kMaxThreads = 1024, kWarp = 32;

enum class State : uint8_t { kReady, kBlock, kWarp, kDone };

struct Fiber {
  State state = State::kReady;
  unsigned mask = 0;
  int site = 0;
  // Of an instruction that all lanes of a warp execute together (PTX: .aligned); null: another one.
  const char* kind = nullptr;
  bool started = false;
  char* stack = nullptr;
#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
  void* pointer = nullptr;
#else
  ucontext_t context;
#endif
};

struct Machine {
  std::map<std::string, void (*)(void**)>& kernels() {
    static std::map<std::string, void (*)(void**)> found;  // filled by constructors of other units
    return found;
  }
  std::vector<Fiber> fibers;
  std::vector<char*> free_stacks;
  std::vector<unsigned> order;
  size_t next = 0;  // into order: the next thread that nobody has begun
  unsigned current = 0, threads = 0;
  void (*start)(void**) = nullptr;
  void** arguments = nullptr;
  const char* name = "";
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  uint64_t slots[kMaxThreads];
  unsigned ballots[kMaxThreads];
  // What lanes hand in at ytk_emulated_meet. Two turns: a lane may be at the next meeting while others still read of this one.
  unsigned char meetings[2][kMaxThreads][64];
  unsigned turns[kMaxThreads];
  bool failed = false;
#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
  void* scheduler = nullptr;
#else
  ucontext_t scheduler;
#endif
} machine;

void place(unsigned thread) {
  const dim3& size = ytk_emulated.block_size;
  machine.current = thread;
  ytk_emulated.thread = {thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
}

void leave() {
  Fiber& fiber = machine.fibers[machine.current];
#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
  ytk_switch(&fiber.pointer, machine.scheduler);
#else
  swapcontext(&fiber.context, &machine.scheduler);
#endif
}

// A fiber's whole life: its own thread, then further ones that nobody has begun, until one of them has to wait.
void life() {
  for (;;) {
    machine.start(machine.arguments);
    Fiber& fiber = machine.fibers[machine.current];
    fiber.state = State::kDone;
    if (machine.failed || machine.next >= machine.order.size()) break;
    // The same stack goes on as the next thread's.
    Fiber& following = machine.fibers[machine.order[machine.next]];
    following.stack = fiber.stack;
    following.started = true;
    fiber.stack = nullptr;
    place(machine.order[machine.next++]);
  }
  leave();
  abort();
}

char* take_stack() {
  if (!machine.free_stacks.empty()) {
    char* stack = machine.free_stacks.back();
    machine.free_stacks.pop_back();
    return stack;
  }
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, kStack + 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) ytk_emulation_die("no memory for the stack of a thread");
  mprotect(memory, 4096, PROT_NONE);  // an overflow ends the process at once
  return (char*)memory + 4096;
}

void begin(Fiber& fiber) {
  fiber.stack = take_stack();
  fiber.started = true;
#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
  void** top = (void**)(fiber.stack + kStack);
  *--top = nullptr;  // the ABI's alignment at a function's entry
  *--top = (void*)life;
  top -= 6;
  memset(top, 0, 48);
  fiber.pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, life, 0);
#endif
}

void resume(unsigned thread) {
  Fiber& fiber = machine.fibers[thread];
  place(thread);
#if defined(__x86_64__) && !defined(YTK_EMULATION_UCONTEXT)
  ytk_switch(&machine.scheduler, fiber.pointer);
#else
  swapcontext(&machine.scheduler, &fiber.context);
#endif
}

void wait_for(State state, unsigned mask, int site, const char* kind = nullptr) {
  Fiber& fiber = machine.fibers[machine.current];
  fiber.state = state;
  fiber.mask = mask;
  fiber.site = site;
  fiber.kind = kind;
  leave();
}

void fail(const char* what) {
  machine.failed = true;
  ytk_emulation_say(what);
}

// Lets the warps go on whose lanes are all where they wait for one another.
bool release_warps() {
  bool any = false;
  for (unsigned first = 0; first < machine.threads; first += kWarp) {
    unsigned live = 0, waiting = 0, wanted = 0;
    const char* kind = nullptr;
    bool mixed = false, orders = false;
    for (unsigned k = 0; k < kWarp && first + k < machine.threads; ++k) {
      const Fiber& fiber = machine.fibers[first + k];
      if (fiber.state != State::kDone) live |= 1u << k;
      if (fiber.state != State::kWarp) continue;
      mixed |= waiting != 0 && fiber.kind != kind && (fiber.kind == nullptr || kind == nullptr || strcmp(fiber.kind, kind) != 0);
      orders |= fiber.kind == nullptr;
      waiting |= 1u << k, wanted |= fiber.mask, kind = fiber.kind;
    }
    if (waiting == 0 || (wanted & live & ~waiting) != 0) continue;
    if (mixed) return fail("lanes of a warp are at different instructions that they execute together"), true;
    if (kind != nullptr && waiting != 0xffffffffu) return fail("a matrix instruction that not all 32 lanes of a warp execute"), true;
    for (unsigned k = 0; k < kWarp && first + k < machine.threads; ++k) {
      Fiber& fiber = machine.fibers[first + k];
      if (fiber.state == State::kWarp) fiber.state = State::kReady;
    }
    if (orders) ytk_emulation_warp_synchronised(first);
    any = true;
  }
  return any;
}

// Lets the block go on if all of its threads are at the same barrier.
void release_block() {
  unsigned live = 0, waiting = 0;
  int site = 0;
  for (unsigned k = 0; k < machine.threads; ++k) {
    const Fiber& fiber = machine.fibers[k];
    live += fiber.state != State::kDone;
    if (fiber.state != State::kBlock) continue;
    if (waiting++ && fiber.site != site) return fail("threads of a block wait at different __syncthreads()");
    site = fiber.site;
  }
  char text[160];
  if (waiting != live) {
    snprintf(text, sizeof text, "deadlock: %u of %u threads wait at __syncthreads(), the others for lanes of their warp", waiting, live);
    return fail(text);
  }
  // Threads that have returned do not count, as on a GPU since Volta.
  for (Fiber& fiber : machine.fibers) {
    if (fiber.state == State::kBlock) fiber.state = State::kReady;
  }
  ytk_emulation_block_synchronised();
}

void run_block(std::mt19937& random, int order) {
  const unsigned count = machine.threads;
  machine.order.resize(count);
  for (unsigned k = 0; k < count; ++k) machine.order[k] = order == 1 ? count - 1 - k : k;
  if (order == 2) {
    for (unsigned k = count; k > 1; --k) std::swap(machine.order[k - 1], machine.order[random() % k]);
  }
  machine.next = 0;
  memset(machine.turns, 0, sizeof machine.turns);
  ytk_emulation_forget_copies();
  for (Fiber& fiber : machine.fibers) {
    if (fiber.stack) machine.free_stacks.push_back(fiber.stack);  // of a launch that failed
    fiber.state = State::kReady, fiber.started = false, fiber.stack = nullptr;
  }
  while (!machine.failed) {
    bool ran = false, alive = false;
    for (unsigned k : machine.order) {
      Fiber& fiber = machine.fibers[k];
      if (fiber.state != State::kReady) continue;
      if (!fiber.started) {
        // Threads begin in the order: what others have begun meanwhile is past.
        if (machine.next < count && machine.order[machine.next] == k) ++machine.next;
        begin(fiber);
      }
      resume(k);
      ran = true;
      // The one that came back need not be the one that left: a stack goes on as other threads'.
      Fiber& back = machine.fibers[machine.current];
      if (back.state == State::kDone && back.stack) {
        machine.free_stacks.push_back(back.stack);
        back.stack = nullptr;
      }
      if (machine.failed) return;
    }
    for (const Fiber& fiber : machine.fibers) alive |= fiber.state != State::kDone;
    if (!alive) return;
    if (ran) {
      bool ready = false;
      for (const Fiber& fiber : machine.fibers) ready |= fiber.state == State::kReady;
      if (ready) continue;
    }
    if (!release_warps()) release_block();
  }
}

int chosen_order = 0;

}  // namespace

// ---- for the checks -------------------------------------------------------------------------------------------------------
unsigned ytk_emulation_thread() { return machine.current; }
const char* ytk_emulation_kernel() { return machine.name; }
void ytk_emulation_fail() { machine.failed = true; }
bool ytk_emulation_on_stack(const void* at) {
  const char* stack = machine.fibers.empty() ? nullptr : machine.fibers[machine.current].stack;
  return stack && (const char*)at >= stack && (const char*)at < stack + kStack;
}
bool ytk_emulation_in_shared(const void* at, size_t size) {
  return machine.shared && (const char*)at >= machine.shared && (const char*)at + size <= machine.shared + machine.shared_bytes;
}

void ytk_emulation_say(const char* what) {
  char text[512];
  const uint3 b = ytk_emulated.block, t = ytk_emulated.thread;
  const int size = snprintf(text, sizeof text, "\nytk-emulation: %s [kernel %s, block (%u,%u,%u), thread (%u,%u,%u)]\n", what,
                            machine.name, b.x, b.y, b.z, t.x, t.y, t.z);
  (void)!write(2, text, (size_t)(size < (int)sizeof text ? size : (int)sizeof text - 1));
}
void ytk_emulation_die(const char* what) {
  ytk_emulation_say(what);
  _exit(66);
}

// ---- what the device unit calls -------------------------------------------------------------------------------------------
extern "C" {

void ytk_emulated_register(const char* name, void (*start)(void**)) { machine.kernels()[name] = start; }
void ytk_emulated_barrier(int site) { wait_for(State::kBlock, 0, site); }
void ytk_emulated_warp_barrier(unsigned mask) { wait_for(State::kWarp, mask, 0); }
int ytk_emulated_lane(void) { return (int)(machine.current % kWarp); }
void* ytk_emulated_shared(void) { return machine.shared; }

uint64_t ytk_emulated_exchange(unsigned mask, uint64_t value, int lane) {
  const unsigned self = machine.current, from = self / kWarp * kWarp + (unsigned)lane % kWarp;
  machine.slots[self] = value;
  wait_for(State::kWarp, mask, 0);
  const uint64_t result = machine.slots[from < machine.threads ? from : self];
  wait_for(State::kWarp, mask, 0);
  return result;
}

const unsigned char* ytk_emulated_meet(const char* kind, const void* mine, size_t size) {
  const unsigned self = machine.current, turn = machine.turns[self]++ % 2;
  memcpy(machine.meetings[turn][self], mine, size);
  wait_for(State::kWarp, 0xffffffffu, 0, kind);
  return machine.meetings[turn][self / kWarp * kWarp];
}

unsigned ytk_emulated_ballot(unsigned mask, int predicate) {
  const unsigned self = machine.current, first = self / kWarp * kWarp;
  machine.ballots[self] = predicate != 0;
  wait_for(State::kWarp, mask, 0);
  unsigned result = 0;
  for (unsigned k = 0; k < kWarp && first + k < machine.threads; ++k) {
    if ((mask >> k & 1u) && machine.ballots[first + k]) result |= 1u << k;
  }
  wait_for(State::kWarp, mask, 0);
  return result;
}

uint32_t ytk_emulated_cas32(uint32_t* at, uint32_t expected, uint32_t wanted) {
  ytk_emulation_atomic(at, 4);
  const uint32_t seen = *at;
  if (seen == expected) *at = wanted;
  return seen;
}
uint64_t ytk_emulated_cas64(uint64_t* at, uint64_t expected, uint64_t wanted) {
  ytk_emulation_atomic(at, 8);
  const uint64_t seen = *at;
  if (seen == expected) *at = wanted;
  return seen;
}

// ---- what the launcher calls ----------------------------------------------------------------------------------------------
int ytk_cuda_launch(const ytk_context*, const char* kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                    void** arguments) {
  machine.name = kernel;
  ytk_emulated.block = {0, 0, 0};
  ytk_emulated.thread = {0, 0, 0};
  const auto found = machine.kernels().find(kernel);
  char text[160];
  if (found == machine.kernels().end()) return ytk_emulation_say("there is no kernel of this name"), YTK_DEVICE_ERROR;
  const uint64_t threads = (uint64_t)block[0] * block[1] * block[2], blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || grid[1] > 65535 || grid[2] > 65535 || grid[0] > 0x7fffffffu) {
    snprintf(text, sizeof text, "a launch of %llu blocks of %llu threads, which no GPU takes", (unsigned long long)blocks, (unsigned long long)threads);
    return ytk_emulation_say(text), YTK_DEVICE_ERROR;
  }
  if (shared_bytes > 227 * 1024) return ytk_emulation_say("more dynamic shared memory than any GPU has"), YTK_DEVICE_ERROR;
  machine.threads = (unsigned)threads;
  machine.fibers.resize(machine.threads);
  machine.start = found->second;
  machine.arguments = arguments;
  machine.failed = false;
  ytk_emulated.block_size = {block[0], block[1], block[2]};
  ytk_emulated.grid_size = {grid[0], grid[1], grid[2]};
  std::vector<char> shared(shared_bytes + 16);
  machine.shared = shared.data() + (16 - (uintptr_t)shared.data() % 16) % 16;
  machine.shared_bytes = shared_bytes;
  const int order = chosen_order;
  std::mt19937 random(12345);
  ytk_emulation_launch_begins(blocks);
  for (uint64_t k = 0; k < blocks && !machine.failed; ++k) {
    // A shuffled order of blocks that needs no table: an odd step is prime to any power of two; what is beyond is skipped.
    uint64_t at = order == 1 ? blocks - 1 - k : k;
    if (order == 2) {
      uint64_t span = 1;
      while (span < blocks) span *= 2;
      static uint64_t cursor = 0;
      if (k == 0) cursor = span / 3;
      do cursor = (cursor + (span / 2 | 1)) % span; while (cursor >= blocks);
      at = cursor;
    }
    ytk_emulated.block = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]), (unsigned)(at / ((uint64_t)grid[0] * grid[1]))};
    memset(shared.data(), 0xA5, shared.size());
    ytk_emulation_block_begins(at);
    run_block(random, order);
  }
  ytk_emulation_launch_ends();
  return machine.failed ? YTK_DEVICE_ERROR : YTK_OK;
}

void ytk_emulation_set_order(int order) { chosen_order = order; }
int ytk_cuda_prepare(void) { return YTK_OK; }

}  // extern "C"
