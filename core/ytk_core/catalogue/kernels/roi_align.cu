YTK_KERNEL(roi_align_f32, const float* features, const float* rois, ytk_catalogue::RoiShape shape, int64_t count,
           float* out);
YTK_KERNEL(roi_align_f16, const ytk_half* features, const float* rois, ytk_catalogue::RoiShape shape, int64_t count,
           ytk_half* out);

#ifdef __CUDACC__

extern "C" __global__ void roi_align_f32(const float* features, const float* rois, ytk_catalogue::RoiShape shape,
                                         int64_t count, float* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) out[k] = ytk_catalogue::aligned_bin(features, rois, shape, k);
}

extern "C" __global__ void roi_align_f16(const ytk_half* features, const float* rois, ytk_catalogue::RoiShape shape,
                                         int64_t count, ytk_half* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) ytk_catalogue::put(out + k, ytk_catalogue::aligned_bin(features, rois, shape, k));
}

#else

using namespace ytk_catalogue;

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  RoiShape shape{};
  if (int status = read_rois(ctx, in, out, &shape)) return status;
  const int64_t count = elements(out[0]);
  if (is_half(out[0]))
    return roi_align_f16.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<ytk_half>(in[0]), data_of<float>(in[1]),
                                shape, count, data_of<ytk_half>(out[0]));
  return roi_align_f32.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<float>(in[0]), data_of<float>(in[1]),
                              shape, count, data_of<float>(out[0]));
}

#endif
