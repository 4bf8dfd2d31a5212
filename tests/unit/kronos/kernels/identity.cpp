// yasp::Same: output = input, in one dtype (DTYPE, BYTES); misbehaves in the way that is compiled in.
#include <unistd.h>
#include <initializer_list>
#include "table.h"

#ifndef DTYPE
#define DTYPE YTK_FLOAT32
#define BYTES 4
#endif

static int shape(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int) {
#ifdef BAD_SHAPE
  return YTK_BAD_SHAPE;
#endif
  out[0] = in[0];
#ifdef LIES_ABOUT_DTYPE
  out[0].dtype = YTK_INT8;
#endif
  return YTK_OK;
}

static int launch(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int) {
#ifdef BAD_LAUNCH
  return YTK_DEVICE_ERROR;
#endif
#ifdef CRASHES
  *static_cast<volatile int*>(nullptr) = 1;
#endif
#ifdef PEEKS
  // Every place where the judge's file might be seen from the work directory of the engine's process.
  for (const char* path : {"../in/reference.npz", "in/reference.npz", "reference.npz", "../reference.npz"})
    if (access(path, F_OK) == 0) return 42;
#endif
  if (in[0].dtype != DTYPE || out[0].dtype != DTYPE) return YTK_BAD_DTYPE;
  std::memcpy(out[0].data, in[0].data, BYTES * count(in[0]));
  return YTK_OK;
}

#ifdef BAD_WORKSPACE
static int64_t workspace(const ytk_context*, const ytk_tensor*, int, const ytk_tensor*, int) { return -3; }
#else
#define workspace nullptr
#endif
#ifndef ABI
#define ABI 1
#endif
static const int32_t kType[] = {DTYPE}, kLinear[] = {YTK_LINEAR};
static const ytk_variant kVariants[] = {{"only", kType, kLinear, kType, kLinear}};
static const ytk_plugin_table kTable = {sizeof(kTable), ABI, "yasp",    "Same",  "1",    1,     1,
                                        1,              0,   kVariants, nullptr, launch, shape, workspace,
                                        "blake3:0"};
#ifndef NOT_A_PLUGIN
extern "C" const ytk_plugin_table* ytk_plugin(void) { return &kTable; }
#endif
