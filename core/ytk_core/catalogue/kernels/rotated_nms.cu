YTK_KERNEL(nms_order_f32, const float* scores, int64_t boxes, int32_t* order);
YTK_KERNEL(nms_order_f16, const ytk_half* scores, int64_t boxes, int32_t* order);
YTK_KERNEL(nms_overlaps, const float* boxes, const int32_t* order, int64_t count, int64_t words, float threshold,
           uint32_t* overlaps);
YTK_KERNEL(nms_keep_f32, const float* scores, const int32_t* order, int64_t count, int64_t words,
           const uint32_t* overlaps, float score_threshold, uint32_t* removed, int64_t most, int32_t* kept,
           int32_t* total);
YTK_KERNEL(nms_keep_f16, const ytk_half* scores, const int32_t* order, int64_t count, int64_t words,
           const uint32_t* overlaps, float score_threshold, uint32_t* removed, int64_t most, int32_t* kept,
           int32_t* total);

#ifdef __CUDACC__

namespace ytk_catalogue {

template <class T>
YTK_BODY void write_order(const T* scores, int64_t boxes, int32_t* order) {
  const int64_t k = thread_index();
  if (k < boxes) order[place_in_order(scores, boxes, k)] = int32_t(k);
}

// One block: box after box in the order, its threads share the words of a row.
template <class T>
YTK_BODY void keep(const T* scores, const int32_t* order, int64_t count, int64_t words, const uint32_t* overlaps,
                   float score_threshold, uint32_t* removed, int64_t most, int32_t* kept, int32_t* total) {
  for (int64_t w = threadIdx.x; w < words; w += blockDim.x) removed[w] = 0;
  for (int64_t k = threadIdx.x; k < most; k += blockDim.x) kept[k] = -1;
  __syncthreads();
  int64_t found = 0;
  for (int64_t k = 0; k < count && found < most; ++k) {
    // Every thread reads the same, so all take the same way.
    if (!(to_float(scores[order[k]]) > score_threshold)) break;
    const bool free = (removed[k >> 5] >> (k & 31) & 1u) == 0;
    __syncthreads();
    if (free) {
      if (threadIdx.x == 0) kept[found] = order[k];
      ++found;
      for (int64_t w = threadIdx.x; w < words; w += blockDim.x) removed[w] |= overlaps[k * words + w];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *total = int32_t(found);
}

}  // namespace ytk_catalogue

extern "C" __global__ void nms_order_f32(const float* scores, int64_t boxes, int32_t* order) {
  ytk_catalogue::write_order(scores, boxes, order);
}

extern "C" __global__ void nms_order_f16(const ytk_half* scores, int64_t boxes, int32_t* order) {
  ytk_catalogue::write_order(scores, boxes, order);
}

// overlaps [count, words]: bit j of row i says that the i-th box removes the j-th, a later one.
extern "C" __global__ void nms_overlaps(const float* boxes, const int32_t* order, int64_t count, int64_t words,
                                        float threshold, uint32_t* overlaps) {
  const int64_t element = ytk_catalogue::thread_index();
  if (element >= count * words) return;
  const int64_t row = element / words, word = element % words;
  uint32_t bits = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const int64_t other = word * 32 + bit;
    if (other > row && other < count &&
        ytk_catalogue::rotated_iou(boxes + order[row] * 5, boxes + order[other] * 5) > threshold)
      bits |= 1u << bit;
  }
  overlaps[element] = bits;
}

extern "C" __global__ void nms_keep_f32(const float* scores, const int32_t* order, int64_t count, int64_t words,
                                        const uint32_t* overlaps, float score_threshold, uint32_t* removed,
                                        int64_t most, int32_t* kept, int32_t* total) {
  ytk_catalogue::keep(scores, order, count, words, overlaps, score_threshold, removed, most, kept, total);
}

extern "C" __global__ void nms_keep_f16(const ytk_half* scores, const int32_t* order, int64_t count, int64_t words,
                                        const uint32_t* overlaps, float score_threshold, uint32_t* removed,
                                        int64_t most, int32_t* kept, int32_t* total) {
  ytk_catalogue::keep(scores, order, count, words, overlaps, score_threshold, removed, most, kept, total);
}

#else

using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {
  const int64_t boxes = in[0].dims[0], words = (boxes + 31) / 32;
  return (boxes + words + boxes * words) * 4 + 64;
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {
  float iou_threshold, score_threshold;
  if (!read_float(ctx, "iou_threshold", &iou_threshold) || !read_float(ctx, "score_threshold", &score_threshold))
    return YTK_BAD_ATTRIBUTE;
  const int64_t boxes = in[0].dims[0], words = (boxes + 31) / 32, most = out[0].dims[0];
  if (in[0].dims[1] != 5 || in[1].dims[0] != boxes) return YTK_BAD_SHAPE;
  if (ctx->workspace_bytes < uint64_t(ytk_workspace(ctx, in, nin, out, nout))) return YTK_WORKSPACE_TOO_SMALL;
  int32_t* order = static_cast<int32_t*>(ctx->workspace);
  uint32_t* removed = reinterpret_cast<uint32_t*>(order + boxes);
  uint32_t* overlaps = removed + words;
  const bool half = in[1].dtype == YTK_FLOAT16;
  const ytk::Extent3 one = {1}, threads = {kThreads};
  const int ordered = half ? nms_order_f16.launch(ctx, blocks_for(boxes), threads, 0, data_of<ytk_half>(in[1]), boxes, order)
                           : nms_order_f32.launch(ctx, blocks_for(boxes), threads, 0, data_of<float>(in[1]), boxes, order);
  if (ordered != YTK_OK) return ordered;
  if (int status = nms_overlaps.launch(ctx, blocks_for(boxes * words), threads, 0, data_of<float>(in[0]), order, boxes,
                                       words, iou_threshold, overlaps))
    return status;
  int32_t *kept = data_of<int32_t>(out[0]), *total = data_of<int32_t>(out[1]);
  if (half)
    return nms_keep_f16.launch(ctx, one, threads, 0, data_of<ytk_half>(in[1]), order, boxes, words, overlaps,
                               score_threshold, removed, most, kept, total);
  return nms_keep_f32.launch(ctx, one, threads, 0, data_of<float>(in[1]), order, boxes, words, overlaps,
                             score_threshold, removed, most, kept, total);
}

#endif
