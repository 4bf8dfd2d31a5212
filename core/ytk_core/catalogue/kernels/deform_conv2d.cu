YTK_KERNEL(deform_columns_f32, const float* image, const float* offset, const float* mask,
           ytk_catalogue::DeformShape shape, float* columns);
YTK_KERNEL(deform_columns_f16, const ytk_half* image, const float* offset, const ytk_half* mask,
           ytk_catalogue::DeformShape shape, float* columns);
YTK_KERNEL(deform_sum_f32, const float* columns, const float* weight, const float* bias,
           ytk_catalogue::DeformShape shape, float* out);
YTK_KERNEL(deform_sum_f16, const float* columns, const ytk_half* weight, const ytk_half* bias,
           ytk_catalogue::DeformShape shape, ytk_half* out);

#ifdef __CUDACC__

namespace ytk_catalogue {

// columns [channels_in * volume, places] of one image
template <class T>
YTK_BODY void write_column(const T* image, const float* offset, const T* mask, const DeformShape& shape, float* columns) {
  const int64_t places = shape.out_height * shape.out_width, element = thread_index();
  const int32_t volume = shape.kernel[0] * shape.kernel[1];
  if (element >= shape.channels_in * volume * places) return;
  const int64_t at = element % places, row = element / places;
  columns[element] = deform_column(image, offset, mask, shape, row / volume, int32_t(row % volume), at);
}

template <class T>
YTK_BODY void sum_columns(const float* columns, const T* weight, const T* bias, const DeformShape& shape, T* out) {
  const int64_t places = shape.out_height * shape.out_width, element = thread_index();
  if (element >= shape.channels_out * places) return;
  const int64_t at = element % places, o = element / places;
  const int64_t per_group = shape.channels_in / shape.groups * shape.kernel[0] * shape.kernel[1];
  const float* own = columns + o / (shape.channels_out / shape.groups) * per_group * places + at;
  float sum = to_float(bias[o]);
  for (int64_t i = 0; i < per_group; ++i) sum += own[i * places] * to_float(weight[o * per_group + i]);
  put(out + element, sum);
}

}  // namespace ytk_catalogue

extern "C" __global__ void deform_columns_f32(const float* image, const float* offset, const float* mask,
                                              ytk_catalogue::DeformShape shape, float* columns) {
  ytk_catalogue::write_column(image, offset, mask, shape, columns);
}

extern "C" __global__ void deform_columns_f16(const ytk_half* image, const float* offset, const ytk_half* mask,
                                              ytk_catalogue::DeformShape shape, float* columns) {
  ytk_catalogue::write_column(image, offset, mask, shape, columns);
}

extern "C" __global__ void deform_sum_f32(const float* columns, const float* weight, const float* bias,
                                          ytk_catalogue::DeformShape shape, float* out) {
  ytk_catalogue::sum_columns(columns, weight, bias, shape, out);
}

extern "C" __global__ void deform_sum_f16(const float* columns, const ytk_half* weight, const ytk_half* bias,
                                          ytk_catalogue::DeformShape shape, ytk_half* out) {
  ytk_catalogue::sum_columns(columns, weight, bias, shape, out);
}

#else

using namespace ytk_catalogue;

namespace {

template <class T, class Columns, class Sum>
int run(const Columns& columns_kernel, const Sum& sum_kernel, const ytk_context* ctx, const ytk_tensor* in,
        const DeformShape& shape, ytk_tensor* out) {
  const int64_t places = shape.out_height * shape.out_width, volume = int64_t(shape.kernel[0]) * shape.kernel[1];
  float* columns = static_cast<float*>(ctx->workspace);
  // One image after the other: the columns of one are enough to fill a GPU.
  for (int64_t n = 0; n < shape.batch; ++n) {
    const T* image = data_of<T>(in[0]) + n * shape.channels_in * shape.height * shape.width;
    const float* offset = data_of<float>(in[1]) + n * 2 * shape.offset_groups * volume * places;
    const T* mask = shape.use_mask ? data_of<T>(in[4]) + n * shape.offset_groups * volume * places : nullptr;
    if (int status = columns_kernel.launch(ctx, blocks_for(shape.channels_in * volume * places), {kThreads}, 0, image,
                                           offset, mask, shape, columns))
      return status;
    if (int status = sum_kernel.launch(ctx, blocks_for(shape.channels_out * places), {kThreads}, 0, columns,
                                       data_of<T>(in[2]), data_of<T>(in[3]), shape,
                                       data_of<T>(out[0]) + n * shape.channels_out * places))
      return status;
  }
  return YTK_OK;
}

}  // namespace

extern "C" int64_t ytk_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor* out, int) {
  return in[0].dims[1] * in[2].dims[2] * in[2].dims[3] * out[0].dims[2] * out[0].dims[3] * int64_t(sizeof(float));
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  DeformShape shape{};
  if (int status = read_deform(ctx, in, out, &shape)) return status;
  if (ctx->workspace_bytes < uint64_t(ytk_workspace(ctx, in, nin, out, nout))) return YTK_WORKSPACE_TOO_SMALL;
  return is_half(out[0]) ? run<ytk_half>(deform_columns_f16, deform_sum_f16, ctx, in, shape, out)
                         : run<float>(deform_columns_f32, deform_sum_f32, ctx, in, shape, out);
}

#endif
