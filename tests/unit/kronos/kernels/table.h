// Helpers for kernels written by hand for these tests.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ytk_kernel.h"

static const ytk_attr* find(const ytk_context* ctx, const char* name) {
  for (int i = 0; i < ctx->attr_count; ++i)
    if (std::strcmp(ctx->attrs[i].name, name) == 0) return ctx->attrs + i;
  return nullptr;
}

static int64_t count(const ytk_tensor& t) {
  int64_t n = 1;
  for (int i = 0; i < t.rank; ++i) n *= t.dims[i];
  return n;
}

static void set(ytk_tensor& t, int32_t dtype, std::initializer_list<int64_t> dims) {
  t.dtype = dtype;
  t.rank = 0;
  for (int64_t dim : dims) t.dims[t.rank++] = dim;
}

static bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }
