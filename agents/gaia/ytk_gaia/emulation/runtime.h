// What runtime.cpp and the checks (checks.cpp) know of one another.
#ifndef YTK_EMULATION_RUNTIME_H
#define YTK_EMULATION_RUNTIME_H
#include "ytk_cuda.h"

unsigned ytk_emulation_thread();
const char* ytk_emulation_kernel();
// One line on standard error that says what, and where.
void ytk_emulation_say(const char* what);
[[noreturn]] void ytk_emulation_die(const char* what);
// Ends the launch at the next switch.
void ytk_emulation_fail();
// Whether the address is on the running thread's stack, or in the block's dynamic shared memory.
bool ytk_emulation_on_stack(const void* at);
bool ytk_emulation_in_shared(const void* at, size_t size);
// Whether the address is in a tensor or the workspace of this call.
bool ytk_emulation_in_buffer(const void* at);
// At the start of a block no copy is under way.
void ytk_emulation_forget_copies();
extern "C" void ytk_emulation_set_order(int order);

// ---- events, for the checks -----------------------------------------------------------------------------------------------
void ytk_emulation_launch_begins(uint64_t blocks);
void ytk_emulation_block_begins(uint64_t block);
void ytk_emulation_launch_ends();
void ytk_emulation_block_synchronised();
void ytk_emulation_warp_synchronised(unsigned first);
void ytk_emulation_atomic(const void* at, size_t size);
// Global memory of one call: everything a kernel may touch is in one of these.
extern "C" void ytk_emulation_buffer(const char* kind, int index, const void* start, uint64_t size);
extern "C" void ytk_emulation_forget_buffers();

#endif  // YTK_EMULATION_RUNTIME_H
