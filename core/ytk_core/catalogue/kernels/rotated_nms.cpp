using namespace ytk_catalogue;

extern "C" int64_t ytk_workspace(const ytk_context*, const ytk_tensor* in, int, const ytk_tensor*, int) {
  return in[0].dims[0] * int64_t(sizeof(int32_t));
}

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  float iou_threshold, score_threshold;
  if (!read_float(ctx, "iou_threshold", &iou_threshold) || !read_float(ctx, "score_threshold", &score_threshold))
    return YTK_BAD_ATTRIBUTE;
  const int64_t boxes = in[0].dims[0], most = out[0].dims[0];
  if (in[0].dims[1] != 5 || in[1].dims[0] != boxes) return YTK_BAD_SHAPE;
  if (ctx->workspace_bytes < uint64_t(boxes) * sizeof(int32_t)) return YTK_WORKSPACE_TOO_SMALL;
  int32_t* order = static_cast<int32_t*>(ctx->workspace);
  const float* box = data_of<float>(in[0]);
  const float* scores = data_of<float>(in[1]);
  for (int64_t k = 0; k < boxes; ++k) order[place_in_order(scores, boxes, k)] = int32_t(k);
  int32_t* kept = data_of<int32_t>(out[0]);
  int64_t count = 0;
  for (int64_t k = 0; k < boxes && count < most; ++k) {
    const int32_t candidate = order[k];
    if (!(scores[candidate] > score_threshold)) break;
    bool free = true;
    for (int64_t other = 0; other < count && free; ++other)
      free = !(rotated_iou(box + kept[other] * 5, box + candidate * 5) > iou_threshold);
    if (free) kept[count++] = candidate;
  }
  std::fill(kept + count, kept + most, -1);
  *data_of<int32_t>(out[1]) = int32_t(count);
  return YTK_OK;
}
