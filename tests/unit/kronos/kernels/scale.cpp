// yasp::Scale: x * scale + sum(shift), through the workspace; says in mode "report" how it was called instead.
#include <initializer_list>
#include "table.h"

static int shape(const ytk_context*, const ytk_tensor* in, int, ytk_tensor* out, int) {
  out[0] = in[0];
  return YTK_OK;
}

static int64_t workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {
  return count(in[0]) * static_cast<int64_t>(sizeof(double));
}

static int launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  const int64_t n = count(in[0]);
  if (ctx->size < sizeof(ytk_context) || ctx->abi_version != 1 || ctx->threads < 1) return YTK_UNSUPPORTED;
  if (ctx->workspace_bytes < n * sizeof(double)) return YTK_WORKSPACE_TOO_SMALL;
  if (!aligned(ctx->workspace) || !aligned(in[0].data) || !aligned(out[0].data)) return YTK_BAD_ALIGNMENT;
  const ytk_attr *scale = find(ctx, "scale"), *shift = find(ctx, "shift"), *mode = find(ctx, "mode");
  float* y = static_cast<float*>(out[0].data);
  if (mode != nullptr && std::strcmp(mode->string, "a<&\"'>b") == 0) {
    const double report[] = {static_cast<double>(ctx->attr_count), static_cast<double>(ctx->threads),
                             static_cast<double>(mode->count), static_cast<double>(shift ? shift->count : -1),
                             scale->floats[0] == static_cast<double>(0.1f) ? 1.0 : 0.0, static_cast<double>(scale->count)};
    for (int64_t i = 0; i < n; ++i) y[i] = i < 6 ? static_cast<float>(report[i]) : 0.0f;
    return YTK_OK;
  }
  double added = 0;
  for (int i = 0; shift && i < shift->count; ++i) added += static_cast<double>(shift->ints[i]);
  const float* x = static_cast<const float*>(in[0].data);
  double* scratch = static_cast<double*>(ctx->workspace);
  for (int64_t i = 0; i < n; ++i) scratch[i] = static_cast<double>(x[i]) * scale->floats[0] + added;
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(scratch[i]);
  return YTK_OK;
}

static const int32_t kFloat[] = {YTK_FLOAT32}, kLinear[] = {YTK_LINEAR};
static const ytk_variant kVariants[] = {{"f32", kFloat, kLinear, kFloat, kLinear}};
static const ytk_attr_decl kAttrs[] = {
    {"scale", YTK_ATTR_FLOATS, 1}, {"shift", YTK_ATTR_INTS, 0}, {"mode", YTK_ATTR_STRING, 0}};
static const ytk_plugin_table kTable = {sizeof(kTable), 1, "yasp",    "Scale", "1",    1,     1,
                                        1,              3, kVariants, kAttrs,  launch, shape, workspace,
                                        "blake3:0"};
extern "C" const ytk_plugin_table* ytk_plugin(void) { return &kTable; }
