// ::RowMax (the empty namespace): per row the largest value, its index as int64, and whether it is positive as bool.
#include <initializer_list>
#include "table.h"

static int shape(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int) {
  set(out[0], YTK_FLOAT32, {in[0].dims[0]});
  set(out[1], YTK_INT64, {in[0].dims[0]});
  set(out[2], YTK_BOOL, {in[0].dims[0]});
  return YTK_OK;
}

static int launch(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int nout) {
  if (nout != 3) return YTK_BAD_ARITY;
  const int64_t columns = in[0].dims[1];
  for (int64_t row = 0; row < in[0].dims[0]; ++row) {
    const float* x = static_cast<const float*>(in[0].data) + row * columns;
    int64_t best = 0;
    for (int64_t c = 1; c < columns; ++c)
      if (x[c] > x[best]) best = c;
    static_cast<float*>(out[0].data)[row] = x[best];
    static_cast<int64_t*>(out[1].data)[row] = best;
    static_cast<bool*>(out[2].data)[row] = x[best] > 0;
  }
  return YTK_OK;
}

static const int32_t kIn[] = {YTK_FLOAT32}, kOut[] = {YTK_FLOAT32, YTK_INT64, YTK_BOOL};
static const int32_t kLinear[] = {YTK_LINEAR, YTK_LINEAR, YTK_LINEAR};
static const ytk_variant kVariants[] = {{"f32", kIn, kLinear, kOut, kLinear}};
static const ytk_plugin_table kTable = {sizeof(kTable), 1, "",        "RowMax", "1",    1,     3,
                                        1,              0, kVariants, nullptr,  launch, shape, nullptr,
                                        "blake3:0"};
extern "C" const ytk_plugin_table* ytk_plugin(void) { return &kTable; }
