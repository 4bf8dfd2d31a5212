YTK_KERNEL(attend_f32, const float* value, const int32_t* sizes, const float* locations, const float* weights,
           ytk_catalogue::AttentionShape shape, int64_t count, float* out);
YTK_KERNEL(attend_f16, const ytk_half* value, const int32_t* sizes, const float* locations, const ytk_half* weights,
           ytk_catalogue::AttentionShape shape, int64_t count, ytk_half* out);

#ifdef __CUDACC__

extern "C" __global__ void attend_f32(const float* value, const int32_t* sizes, const float* locations,
                                      const float* weights, ytk_catalogue::AttentionShape shape, int64_t count,
                                      float* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) out[k] = ytk_catalogue::attended(value, sizes, locations, weights, shape, k);
}

extern "C" __global__ void attend_f16(const ytk_half* value, const int32_t* sizes, const float* locations,
                                      const ytk_half* weights, ytk_catalogue::AttentionShape shape, int64_t count,
                                      ytk_half* out) {
  const int64_t k = ytk_catalogue::thread_index();
  if (k < count) ytk_catalogue::put(out + k, ytk_catalogue::attended(value, sizes, locations, weights, shape, k));
}

#else

using namespace ytk_catalogue;

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  AttentionShape shape{};
  if (int status = read_attention(in, &shape)) return status;
  const int64_t count = elements(out[0]);
  const int32_t* sizes = data_of<int32_t>(in[1]);
  if (is_half(out[0]))
    return attend_f16.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<ytk_half>(in[0]), sizes,
                             data_of<float>(in[2]), data_of<ytk_half>(in[3]), shape, count, data_of<ytk_half>(out[0]));
  return attend_f32.launch(ctx, blocks_for(count), {kThreads}, 0, data_of<float>(in[0]), sizes, data_of<float>(in[2]),
                           data_of<float>(in[3]), shape, count, data_of<float>(out[0]));
}

#endif
