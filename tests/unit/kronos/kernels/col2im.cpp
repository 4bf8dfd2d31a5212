// yasp::Col2im, scatter form, everything from attributes.
#include <initializer_list>
#include "table.h"

static int shape(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t *k = find(ctx, "kernel_size")->ints, *o = find(ctx, "output_size")->ints;
  const int64_t channels = in[0].dims[1] < 0 ? -1 : in[0].dims[1] / (k[0] * k[1]);
  set(out[0], YTK_FLOAT32, {in[0].dims[0], channels, o[0], o[1]});
  return YTK_OK;
}

static int launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  if (nin != 1 || nout != 1) return YTK_BAD_ARITY;
  const int64_t *k = find(ctx, "kernel_size")->ints, *s = find(ctx, "stride")->ints;
  const ytk_attr* padding = find(ctx, "padding");
  const int64_t p0 = padding ? padding->ints[0] : 0, p1 = padding ? padding->ints[1] : 0;
  const float* x = static_cast<const float*>(in[0].data);
  float* y = static_cast<float*>(out[0].data);
  std::memset(y, 0, sizeof(float) * count(out[0]));
  const int64_t N = out[0].dims[0], C = out[0].dims[1], H = out[0].dims[2], W = out[0].dims[3];
  const int64_t lh = (H + 2 * p0 - k[0]) / s[0] + 1, lw = (W + 2 * p1 - k[1]) / s[1] + 1;
  for (int64_t nc = 0; nc < N * C; ++nc)
    for (int64_t i = 0; i < k[0]; ++i)
      for (int64_t j = 0; j < k[1]; ++j)
        for (int64_t u = 0; u < lh; ++u)
          for (int64_t v = 0; v < lw; ++v) {
            const int64_t h = u * s[0] - p0 + i, w = v * s[1] - p1 + j;
            if (h < 0 || h >= H || w < 0 || w >= W) continue;
            y[(nc * H + h) * W + w] += x[(((nc * k[0] + i) * k[1] + j) * lh + u) * lw + v];
          }
  return YTK_OK;
}

static const int32_t kFloat[] = {YTK_FLOAT32}, kLinear[] = {YTK_LINEAR};
static const ytk_variant kVariants[] = {{"f32", kFloat, kLinear, kFloat, kLinear}};
static const ytk_attr_decl kAttrs[] = {{"kernel_size", YTK_ATTR_INTS, 1},
                                       {"output_size", YTK_ATTR_INTS, 1},
                                       {"stride", YTK_ATTR_INTS, 1},
                                       {"padding", YTK_ATTR_INTS, 0}};
static const ytk_plugin_table kTable = {sizeof(kTable), 1,      "yasp",    "Col2im", "1",    1,     1,
                                        1,              4,      kVariants, kAttrs,   launch, shape, nullptr,
                                        "blake3:0"};
extern "C" const ytk_plugin_table* ytk_plugin(void) { return &kTable; }
