using namespace ytk_catalogue;

extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int, ytk_tensor* out, int) {
  RoiShape shape{};
  if (int status = read_rois(ctx, in, out, &shape)) return status;
  const int64_t count = elements(out[0]);
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
  for (int64_t element = 0; element < count; ++element)
    data_of<float>(out[0])[element] = aligned_bin(data_of<float>(in[0]), data_of<float>(in[1]), shape, element);
  return YTK_OK;
}
