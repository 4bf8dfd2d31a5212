// acme.vision::TakeRows: rows of a float32 matrix by int64 indices; a second variant takes int32 if INT32 is defined.
#include <initializer_list>
#include "table.h"

static int shape(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int) {
  set(out[0], YTK_FLOAT32, {in[1].dims[0], in[0].dims[1]});
  return YTK_OK;
}

static int launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  if (in[1].dtype != (ctx->variant == 0 ? YTK_INT64 : YTK_INT32)) return YTK_BAD_DTYPE;
  const int64_t columns = in[0].dims[1];
  for (int64_t i = 0; i < in[1].dims[0]; ++i) {
    const int64_t row = ctx->variant == 0 ? static_cast<const int64_t*>(in[1].data)[i] : static_cast<const int32_t*>(in[1].data)[i];
    if (row < 0 || row >= in[0].dims[0]) return 77;
    std::memcpy(static_cast<float*>(out[0].data) + i * columns, static_cast<const float*>(in[0].data) + row * columns,
                sizeof(float) * columns);
  }
  return YTK_OK;
}

static const int32_t kIn64[] = {YTK_FLOAT32, YTK_INT64}, kIn32[] = {YTK_FLOAT32, YTK_INT32};
static const int32_t kLinear[] = {YTK_LINEAR, YTK_LINEAR}, kOut[] = {YTK_FLOAT32};
static const ytk_variant kVariants[] = {{"i64", kIn64, kLinear, kOut, kLinear}, {"i32", kIn32, kLinear, kOut, kLinear}};
#ifdef INT32
static const int kVariantCount = 2;
#else
static const int kVariantCount = 1;
#endif
static const ytk_plugin_table kTable = {sizeof(kTable), 1, "acme.vision", "TakeRows", "2",    2,     1,
                                        kVariantCount,  0, kVariants,     nullptr,    launch, shape, nullptr,
                                        "blake3:0"};
extern "C" const ytk_plugin_table* ytk_plugin(void) { return &kTable; }
